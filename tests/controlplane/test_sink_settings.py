"""Tests of [[Sinks]] in the settings: the kind determines the keys, and every error names its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.settings import read_settings, secrets_of
from controlplane.sinks.settings import SplunkSettings, SyslogSettings
from proxy.config import SettingsError, describe
from proxy.config.secret_places import given_secrets

SPLUNK = '[[Sinks]]\nName = "siem"\nKind = "splunk"\nUrl = "https://splunk.example:8088"\n'
SYSLOG = '[[Sinks]]\nName = "log"\nKind = "syslog"\nUrl = "tls://log.example"\n'


def problems_of(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    path = folder / "c.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_settings(path, environ or {})
    return [each.removeprefix(f"{folder}/") for each in caught.value.problems]


def test_each_kind_has_keys_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    (tmp_path / "token").write_text("hec-secret\n")
    path.write_text(SPLUNK + 'TokenFile = "token"\n' + SYSLOG + 'Format = "cef"\nFilter = "verdict:block"\n')
    settings = read_settings(path, {"Sinks__log__Facility": "4"})
    splunk, syslog = settings.sinks
    assert isinstance(splunk, SplunkSettings)
    assert isinstance(syslog, SyslogSettings)
    assert (splunk.token, splunk.from_, splunk.hold_days) == ("hec-secret", "now", 30)
    assert (syslog.facility, syslog.format, syslog.filter) == (4, "cef", "verdict:block")
    shown = describe(settings)
    assert 'Token = "********"' in shown
    assert "hec-secret" not in shown
    assert shown.count("[[Sinks]]") == 2
    assert "hec-secret" in secrets_of(settings)
    assert given_secrets(type(settings), path, {}).files == (tmp_path / "token",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[Sinks]]\nName = "a"\n', "c.toml:1: Sinks.a.Kind: missing, and required: write one of syslog,"),
        (SPLUNK.replace("splunk\"", "splnk\"", 1), "c.toml:3: Sinks.siem.Kind: is 'splnk': write one of"),
        (SPLUNK, "c.toml:1: Sinks.siem.Token: missing, and required (or TokenFile)"),
        (SYSLOG + "Token = 1\n", "c.toml:5: Sinks.log.Token: unknown key, the nearest known is"),
        (SYSLOG + 'Filter = "verdict:no"\n', "c.toml:5: Sinks.log.Filter: is not a valid filter: column 9"),
        (SYSLOG.replace("tls:", "tcp:"), "c.toml:4: Sinks.log.Url: must begin with tls://"),
        (SYSLOG.replace("tls:", "udp:"), "c.toml:4: Sinks.log.Url: the address must be tls://host:port or"),
        (SPLUNK.replace("https:", "http:") + 'Token = "t"\n', "c.toml:4: Sinks.siem.Url: must be an https://"),
        (
            SPLUNK + 'Token = "t"\nFormat = "cef"\n',
            "c.toml:6: Sinks.siem.Format: the value must be one of event, ocsf",
        ),
        (SYSLOG + SYSLOG, "c.toml:6: Sinks.Name: 'log' is given twice"),
        ("[Sinks]\n", "c.toml:1: Sinks: is an array of tables: write [[Sinks]]"),
        ("[Sink]\n", "c.toml:1: Sink: unknown section, did you mean Sinks?"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    (first, *_) = problems_of(tmp_path, text)
    assert first.startswith(problem)


def test_a_variable_for_a_sink_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (first,) = problems_of(tmp_path, SYSLOG, {"Sinks__other__Facility": "4"})
    assert first.startswith("environment: Sinks__other__Facility: unknown setting, did you mean")
