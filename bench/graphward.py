"""Graphward in the configuration of a benchmark: settings, initial rules, and a valid token."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from proxy.policy.ruleset_yaml import parse_ruleset
from proxy.rules.snapshot import App, Snapshot, SnapshotRuleset, write_snapshot
from proxy.server.callers.rulebook import Caller
from proxy.server.callers.token_keeper import TokenKeeper, TokenSettings

SIGNING_KEY: Final = "graphward-bench-signing-key-of-forty-chars"
TOKEN_SECONDS: Final = 86400

ALLOW: Final = """\
version: 1
name: bench
default: block
rules:
  - id: users
    match: {methods: [GET], path: [/v1.0/users, "/v1.0/users/{id}"]}
    verdict: allow
"""
STRIP: Final = ALLOW.replace("verdict: allow", "verdict: filter") + (
    "    transforms: {strip_properties: [mobilePhone, businessPhones, otherMails]}\n"
)
ANYTHING: Final = ALLOW.replace(
    "methods: [GET], path: [/v1.0/users, ", "path: [/v1.0/large, /v1.0/large-json, "
)

Section = Mapping[str, str | int | float | bool]


def write_graphward(directory: Path, sections: Mapping[str, Section], rules: str) -> Path:
    """Write a settings file to `directory` and return its path. Settings that are not given have defaults.

    The directory already contains a snapshot of the rules, as after a restart of the proxy. The proxy has no
    reachable control plane unless `sections` contains the address of a control plane.
    """
    snapshot = Snapshot(
        version="1",
        generated_at="2026-01-01T00:00:00.000Z",
        generation=1,
        synced_at=time.time(),
        etag=None,
        proxy_id="proxy-1",
        sync_interval_seconds=None,
        orgs={"org-1": "Contoso"},
        apps=(App("app-1", "org-1", "bench", "client-1", (), 1, "ruleset-1", True),),
        rulesets=(SnapshotRuleset("ruleset-1", "org-1", "bench", 1, "digest", parse_ruleset(rules)),),
    )
    write_snapshot(directory / "snapshot.json", snapshot)
    key = directory / "token.key"
    key.touch(mode=0o600)
    key.write_text(SIGNING_KEY)
    defaults: dict[str, Section] = {
        "Proxy": {"MaxConnectionsPerAddress": 20_000},  # The load comes from one machine.
        "Agent": {"ApiKey": "standin-api-key", "HmacSecret": "standin-hmac-secret"},
        "RuleSync": {"SaasBaseUrl": "http://127.0.0.1:1", "CachePath": "snapshot.json"},
        "Audit": {"LocalRetentionPath": "audit"},
        "Token": {"SigningKeyFile": "token.key"},
    }
    file = directory / "proxy.toml"
    file.touch(mode=0o600)
    names = sorted(defaults.keys() | sections.keys())
    file.write_text("\n".join(_toml(n, {**defaults.get(n, {}), **sections.get(n, {})}) for n in names))
    return file


def _toml(name: str, section: Section) -> str:
    # Texts, numbers and truth values of JSON are also valid TOML.
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in section.items())


def proxy_token(now: float) -> str:
    """Return a proxy token that is valid for a day."""
    keeper = TokenKeeper(TokenSettings("graphward", "graphward", TOKEN_SECONDS), [SIGNING_KEY.encode()])
    caller = Caller("app-1", "org-1", "client-1", secret_version=1)
    return keeper.issue(caller, now=now, token_id="bench")
