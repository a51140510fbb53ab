"""Tests of listeners: all are bound before one is served, and a failed bind ends the start."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from controlplane.listeners import Listeners
from controlplane.settings import read_settings
from proxy.config import Address, SettingsError
from proxy.config.listening import holder, not_listening
from tests.controlplane.plane import write_settings
from tests.controlplane.processes import cli
from tests.fakes.ports import free_port, this_program

PROC = Path("/proc")


@pytest.mark.parametrize("section", ["ControlPlane", "Console", "Metrics"])
def test_a_busy_listener_ends_the_start_before_anything_is_made(tmp_path: Path, section: str) -> None:
    config = write_settings(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        done = cli(config, **{f"{section}__Listen": address})
    key = f"{section}.Listen"
    report = f"{key}: {address} is in use by {this_program()}: end it, or change {key}\n"
    assert (done.returncode, done.stderr) == (1, report)
    assert not (tmp_path / "var").exists()


def test_a_port_that_is_taken_between_bind_and_listen_lets_no_client_connect(tmp_path: Path) -> None:
    """Two programs that start at once can both bind a port, but only one of them can listen."""
    metrics = f'Listen = "127.0.0.1:{free_port()}"'
    settings = read_settings(write_settings(tmp_path, Metrics=metrics), {})
    (address,) = settings.metrics.listen
    with ExitStack() as stack, socket.socket() as other:
        listeners = Listeners(settings, stack)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((address.host, address.port))
        other.listen()
        with pytest.raises(OSError, match=rf"^Metrics\.Listen: {address} is in use by {this_program()}"):
            listeners.listen()


def test_the_default_addresses_are_no_exception(tmp_path: Path) -> None:
    """Even without the setting `Console.Listen`, the control plane binds its default, or logs why not."""
    (tmp_path / "controlplane.toml").write_text(
        '[ControlPlane]\nListen = "127.0.0.1:0"\n[Metrics]\nListen = []\n', "utf-8"
    )
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", 8091))
            held.listen()
        except OSError:
            pass  # another program already has the port, which serves the same purpose
        done = cli(tmp_path / "controlplane.toml")
    assert done.returncode == 1
    assert done.stderr.startswith("Console.Listen: 127.0.0.1:8091 is in use by ")


@pytest.mark.parametrize(
    ("listens", "wanted"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("127.0.0.1", "localhost"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),  # both address families
    ],
)
def test_the_holder_of_a_port_is_named(listens: str, wanted: str) -> None:
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with socket.create_server((listens, 0), family=family, dualstack_ipv6=listens == "::") as held:
        port = held.getsockname()[1]
        assert holder(Address(wanted, port), PROC) == this_program()
        assert holder(Address("127.0.0.2", port), PROC) == (None if "1" in listens else this_program())
    assert holder(Address(wanted, port), PROC) is None


def test_a_holder_that_may_not_be_looked_at_is_looked_for_with_a_command(tmp_path: Path) -> None:
    error = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    report = not_listening("Admin.Listen", Address("127.0.0.1", 9090), error, tmp_path)
    assert report == (
        "Admin.Listen: 127.0.0.1:9090 is in use by another program (`ss -ltnp sport = :9090` names it), or"
        " Graphward is already running: end it, or change Admin.Listen"
    )


@pytest.mark.parametrize(
    ("number", "host", "words"),
    [
        (errno.EAFNOSUPPORT, "::1", "this machine has no IPv6"),
        (errno.EADDRNOTAVAIL, "::1", "this machine has no IPv6"),
        (errno.EADDRNOTAVAIL, "192.0.2.1", "is not an address of this machine"),
        (errno.EACCES, "127.0.0.1", "this user may not open port 443"),
        (errno.ENOBUFS, "127.0.0.1", os.strerror(errno.ENOBUFS)),
    ],
)
def test_each_cause_has_its_own_words(number: int, host: str, words: str) -> None:
    error = OSError(number, os.strerror(number))
    report = not_listening("Proxy.Listen", Address(host, 443), error, PROC)
    assert report.startswith("Proxy.Listen: ")
    assert words in report


def test_two_listeners_of_one_port_are_refused_before_the_start(tmp_path: Path) -> None:
    for key, other in (("Console", "ControlPlane"), ("Metrics", "Console")):
        environment = dict.fromkeys((f"{key}__Listen", f"{other}__Listen"), "127.0.0.1:8290")
        with pytest.raises(SettingsError, match=rf"{key}\.Listen: 127.0.0.1:8290 is given twice, .*{other}"):
            read_settings(write_settings(tmp_path), environment)
