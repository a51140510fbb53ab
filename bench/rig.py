"""Set-up of a benchmark run: directory, upstream, keys, tokens, and the start of each measured server."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from bench.graphward import SIGNING_KEY, Section, proxy_token, write_graphward
from bench.samples import ONE_USER, USERS
from bench.servers import Server, free_ports
from bench.tools import ROOT, cores, find, nginx_modules
from tests.fakes.certificates import CertificateAuthority

TEMPLATES: Final = ROOT / "bench" / "peers"
UPSTREAM_TOKEN: Final = "upstream-" + "t" * 1200  # A token of Entra has this length.
LARGE_BYTES: Final = 16 * 1024 * 1024


class Missing(Exception):
    """Error because a program that a benchmark needs is not installed."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Ports of the upstream servers of a benchmark run.

    Nginx listens on the ports `open`, `guarded` and `tls`. On the ports `guarded` and `tls`, nginx returns
    401 unless a request has the bearer token that a proxy must send upstream.
    """

    open: int
    guarded: int
    tls: int
    own: int


@dataclass(frozen=True, slots=True)
class FakePorts:
    control_plane: int
    identity: int


class Rig:
    """Starter of servers, which writes the servers' configuration files to the directory `run`."""

    def __init__(self, run: Path) -> None:
        self.run = run
        run.chmod(0o755)  # If root starts nginx, its workers run as another user.
        self.token = proxy_token(time.time())
        authority = CertificateAuthority(run / "certificates")
        self.certificate = authority.server()
        self.ca_file = authority.ca_file
        bundle = self.certificate.cert_file.read_bytes() + self.certificate.key_file.read_bytes()
        self._bundle = run / "bundle.pem"
        self._bundle.touch(mode=0o600)
        self._bundle.write_bytes(bundle)
        self.upstream = Upstream(*free_ports(4))
        self._templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        (run / "user.json").write_bytes(ONE_USER)
        (run / "users.json").write_bytes(USERS)
        (run / "large.bin").write_bytes(b"x" * LARGE_BYTES)

    # The upstream

    def start_upstream(self) -> Server:
        ports = self.upstream
        config = self._write(
            "upstream.nginx.conf", port=ports.open, guarded_port=ports.guarded, tls_port=ports.tls
        )
        command = [_needed("nginx"), "-e", "/dev/null", "-p", str(self.run), "-c", str(config)]
        return self._spawn("upstream", command, ports.open, core=cores().load)

    def start_own_upstream(self) -> Server:
        """Start our own upstream, which accepts any credential and accepts uploads."""
        port = self.upstream.own
        command = [sys.executable, "-m", "bench.upstream", str(port)]
        return self._spawn("own-upstream", command, port, core=cores().load)

    # Peers. Each one forwards, or does Graphward's default duties ("evaluating").

    def relay(self, *, upstream_port: int | None = None) -> Server:
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "bench.relay", str(port), str(upstream_port or self.upstream.open)]
        return self._spawn("relay", command, port)

    def nginx(self, *, upstream_port: int | None = None) -> Server:
        return self._nginx("nginx.conf", upstream_port or self.upstream.open)

    def nginx_evaluating(self, *, tls: bool = False) -> Server:
        return self._nginx("nginx-lua.conf", self.upstream.tls if tls else self.upstream.guarded, tls=tls)

    def nginx_stripping(self) -> Server:
        return self._nginx("nginx-strip.conf", self.upstream.open)

    def haproxy(self) -> Server:
        return self._haproxy("haproxy.cfg", self.upstream.open)

    def haproxy_evaluating(self, *, tls: bool = False) -> Server:
        return self._haproxy("haproxy-jwt.cfg", self.upstream.tls if tls else self.upstream.guarded, tls=tls)

    def envoy(self, *, evaluating: bool = False) -> Server:
        (port,) = free_ports(1)
        upstream_port = self.upstream.guarded if evaluating else self.upstream.open
        config = self._write("envoy.yaml", port=port, upstream_port=upstream_port, evaluating=evaluating)
        command = [_needed("envoy"), "-c", str(config), "--concurrency", "1", "--disable-hot-restart"]
        return self._spawn("envoy", [*command, "--log-level", "error"], port)

    def aiohttp(self, *, evaluating: bool = False, stripping: bool = False) -> Server:
        (port,) = free_ports(1)
        upstream_port = self.upstream.guarded if evaluating else self.upstream.open
        duties = {
            "upstream": f"http://127.0.0.1:{upstream_port}",
            "evaluate": evaluating,
            "strip": stripping,
            "signing_key": SIGNING_KEY,
            "issuer": "graphward",
            "audience": "graphward",
            "upstream_token": UPSTREAM_TOKEN,
            "record_file": str(self.run / f"aiohttp-{port}.record.log"),
        }
        file = self.run / f"aiohttp-{port}.json"
        file.write_text(json.dumps(duties))
        return self._spawn(
            "aiohttp", [sys.executable, "-m", "bench.aiohttp_proxy", str(port), str(file)], port
        )

    def graphward(
        self,
        *,
        rules: str,
        workers: int = 1,
        tls: bool = False,
        upstream_port: int | None = None,
        fakes: FakePorts | None = None,
        sections: Mapping[str, Section] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        """Start Graphward with its defaults and the settings in `sections`.

        If `fakes` is not given, the proxy runs without a control plane and takes the upstream token from its
        settings.
        """
        port, admin_port = free_ports(2)
        upstream = upstream_port or (self.upstream.tls if tls else self.upstream.guarded)
        own: dict[str, dict[str, str | int]] = {
            "Proxy": {"Listen": f"127.0.0.1:{port}", "Workers": workers},
            "Upstream": {"BaseUrl": f"{'https' if tls else 'http'}://localhost:{upstream}"},
            "Credentials": {"Provider": "static", "AccessToken": UPSTREAM_TOKEN},
            "Admin": {"Listen": f"127.0.0.1:{admin_port}"},
        }
        if tls:
            own["Proxy"]["CertFile"] = str(self.certificate.cert_file)
            own["Proxy"]["KeyFile"] = str(self.certificate.key_file)
            own["Upstream"]["CaFile"] = str(self.ca_file)
        if fakes is not None:
            own["RuleSync"] = {"SaasBaseUrl": f"http://127.0.0.1:{fakes.control_plane}"}
        merged = {
            name: {**own.get(name, {}), **(sections or {}).get(name, {})}
            for name in {*own, *(sections or {})}
        }
        # Ports are reused, so they can't name the directory.
        directory = Path(tempfile.mkdtemp(prefix="graphward-", dir=self.run))
        config = write_graphward(directory, merged, rules)
        command = [sys.executable, "-m", "proxy", "--config", str(config)]
        return self._spawn("graphward", command, port, environment=environment)

    def fakes(self, behaviour: Literal["accepts", "down", "changes"]) -> tuple[Server, FakePorts]:
        """Start the fake control plane and identity provider; see bench/fakes.py."""
        ports = FakePorts(*free_ports(2))
        command = [
            sys.executable,
            "-m",
            "bench.fakes",
            str(ports.control_plane),
            str(ports.identity),
            behaviour,
        ]
        return self._spawn("fakes", command, ports.control_plane, core=cores().load), ports

    # Helpers

    def _nginx(self, template: str, upstream_port: int, *, tls: bool = False) -> Server:
        program = _needed("nginx")
        modules = nginx_modules()
        if "lua" in (TEMPLATES / template).read_text() and modules is None:
            raise Missing("nginx's lua module (apt install libnginx-mod-http-lua lua-cjson)")
        (port,) = free_ports(1)
        config = self._write(template, port=port, upstream_port=upstream_port, tls=tls, modules=modules)
        command = [program, "-e", "/dev/null", "-p", str(self.run), "-c", str(config)]
        return self._spawn("nginx", command, port)

    def _haproxy(self, template: str, upstream_port: int, *, tls: bool = False) -> Server:
        program = _needed("haproxy")
        (port,) = free_ports(1)
        config = self._write(template, port=port, upstream_port=upstream_port, tls=tls)
        return self._spawn("haproxy", [program, "-db", "-f", str(config)], port)

    def _write(self, template: str, **values: object) -> Path:
        text = self._templates.get_template(template).render(
            run=self.run,
            lua=TEMPLATES,
            cert_file=self.certificate.cert_file,
            key_file=self.certificate.key_file,
            ca_file=self.ca_file,
            bundle_file=self._bundle,
            signing_key=SIGNING_KEY,
            signing_jwk=base64.urlsafe_b64encode(SIGNING_KEY.encode()).decode().rstrip("="),
            issuer="graphward",
            audience="graphward",
            upstream_token=UPSTREAM_TOKEN,
            **values,
        )
        file = self.run / f"{values['port']}-{template}"
        file.write_text(text)
        return file

    def _spawn(
        self,
        name: str,
        command: list[str],
        port: int,
        *,
        core: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Server:
        on = cores().server if core is None else core
        log = self.run / f"{name}-{port}.log"
        return Server(name, command, port, core=on, log=log, environment=environment)


def _needed(program: str) -> str:
    path = find(program)
    if path is None:
        raise Missing(program)
    return path
