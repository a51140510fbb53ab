"""Tests of PostgreSQL URLs: no part of a password is shown, whatever characters the password has."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest

from controlplane.database_url import address_of, secrets_of_url, valid_database_url
from controlplane.doctor.files import settings_and_modes
from controlplane.exposures import exposures
from controlplane.settings import read_settings
from proxy.config import SettingsError
from tests.controlplane.plane import write_settings

PASSWORDS = ["Zaub/3r#wort", "p@ss3r", "[x]y3r", "Zaub 3r", "12?z3r=1", "%zaub3r", "zäub3r", "1/x?y=z3r"]


@pytest.mark.parametrize("key", ["Url", "UrlFile"])
@pytest.mark.parametrize("section", ["Store", "SearchIndex"])
@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_that_is_not_percent_encoded_is_refused_unseen(
    tmp_path: Path, section: str, key: str, password: str
) -> None:
    url = f"postgresql://graphward:{password}@127.0.0.1:5510/events"
    if key == "UrlFile":
        (tmp_path / "url").write_text(f"{url}\n")
    line = f'{key} = "{"url" if key == "UrlFile" else url}"'
    sections = {"SearchIndex": 'Kind = "postgresql"'}
    sections[section] = "\n".join(filter(None, [sections.get(section), line]))
    with pytest.raises(
        SettingsError, match=rf":\d+: {section}\.Url: .*percent-encode .*\(@ is %40"
    ) as raised:
        read_settings(write_settings(tmp_path, **sections), {})
    assert "3r" not in str(raised.value)


def test_no_password_passes_for_something_else() -> None:
    """Every URL in which the driver and a human reader find different passwords is refused."""
    conninfo = pytest.importorskip("psycopg.conninfo")
    refusals = set()
    for characters in product("@/:?#[]% ä&=,4", repeat=3):
        password = "".join(characters)
        url = f"postgresql://u:{password}@h:1/db"
        try:
            valid_database_url(url)
        except ValueError as refused:
            refusals.add(str(refused))
            continue
        assert conninfo.conninfo_to_dict(url)["host"] == "h"
        assert conninfo.conninfo_to_dict(url)["password"] in secrets_of_url(url)
        assert address_of(url) == "postgresql://h:1/db"
    assert len(refusals) == 1  # one text for all, so it reveals nothing of them


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_percent_encoded_password_is_the_password(password: str) -> None:
    conninfo = pytest.importorskip("psycopg.conninfo")
    url = valid_database_url(f"postgresql://u:{quote(password, safe='')}@h,[::1]:2/db?sslmode=require")
    assert conninfo.conninfo_to_dict(url)["password"] == password
    assert password in secrets_of_url(url)
    assert address_of(url) == "postgresql://h,[::1]:2/db"


def test_a_mode_of_tls_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="sslmode in the URL must be one of disable, allow, prefer, require"):
        valid_database_url("postgresql://h/db?sslmode=on")


@pytest.mark.parametrize(
    ("url", "is_exposed"),
    [
        ("postgresql://u@db.example/x", True),
        ("postgresql://u@db.example/x?sslmode=prefer", True),
        ("postgresql://u@127.0.0.1,db.example/x", True),
        ("postgresql://u@db.example/x?sslmode=verify-full", False),
        ("postgresql://u@[::1]:5432/x", False),
        ("postgresql://u@localhost:5432/x", False),
        ("postgresql:///x?host=/run/postgresql", False),
        ("postgresql://%2Frun%2Fpostgresql/x", False),
    ],
)
def test_a_database_on_another_host_without_tls_is_warned_of_once(
    tmp_path: Path, url: str, is_exposed: bool
) -> None:
    sections = {"Store": f'Url = "{url}"', "SearchIndex": 'Kind = "postgresql"'}
    settings = read_settings(write_settings(tmp_path, **sections), {})
    assert [each.key for each in exposures(settings)] == ["Store.Url"] * is_exposed


def test_clickhouse_on_another_host_without_tls_is_warned_of(tmp_path: Path) -> None:
    index = 'Kind = "clickhouse"\nUrl = "http://click.example:8123/events"'
    (found,) = exposures(read_settings(write_settings(tmp_path, SearchIndex=index), {}))
    assert found.key == "SearchIndex.Url"
    assert found.what.startswith("click.example is on another host")


def test_a_doctor_names_files_of_secrets_that_others_can_read(tmp_path: Path) -> None:
    for name, text in (("url", "postgresql://u:secret@h/db"), ("word", "clickhouse"), ("safe", "secret")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600 if name == "safe" else 0o644)
    config = write_settings(
        tmp_path,
        Store='UrlFile = "url"',
        SearchIndex='Kind = "clickhouse"\nUrl = "http://127.0.0.1"\nUsername = "u"\nPasswordFile = "word"',
        Console='Listen = []\nOidcClientSecretFile = "safe"',
    )
    config.chmod(0o644)
    found = [each for each in settings_and_modes(read_settings(config), config) if each.check == "file modes"]
    assert [each.fix for each in found] == [f"chmod 600 {tmp_path / name}" for name in ("url", "word")]
    inline = {"Store": 'Url = "postgresql://u:secret@h/db"', "SearchIndex": 'Kind = "postgresql"'}
    config = write_settings(tmp_path, **inline)
    config.chmod(0o644)
    found = [each for each in settings_and_modes(read_settings(config), config) if each.check == "file modes"]
    assert [each.fix for each in found] == [f"chmod 600 {config}"]
