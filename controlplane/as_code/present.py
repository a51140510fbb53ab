"""Plain values, by name, for the control plane objects that a configuration directory can manage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.as_code.wanted import CredentialListName, WantedCredential
from controlplane.store.interface import Retention, Role


@dataclass(frozen=True, slots=True)
class PresentRuleset:
    ruleset_id: str
    name: str
    version: int
    yaml: str
    schemas: Mapping[str, str]  # digests of the schemas that the active version names, by root path
    proposed: Mapping[str, str] = field(default_factory=dict)
    """Ids of the open proposals for the next version, by any operator; the keys are their texts."""


@dataclass(frozen=True, slots=True)
class PresentSecret:
    """The newest client secret of an app."""

    credential_id: str
    ends: str | None


@dataclass(frozen=True, slots=True)
class PresentCredential:
    credential_id: str
    wanted: WantedCredential  # form of the credential in a directory
    ends: str | None  # This may be the end of its certificate, which a directory need not state.


@dataclass(frozen=True, slots=True)
class PresentApp:
    app_id: str
    name: str
    ruleset: str
    shadow: str | None
    owner: str | None
    note: str | None
    enabled: bool
    proposed: Mapping[str, str] = field(default_factory=dict)
    """Ids of the open proposals to bind a ruleset, by any operator; the keys are the rulesets' names."""
    secret: PresentSecret | None = None  # None: the app has no client secret
    credentials: Mapping[CredentialListName, tuple[PresentCredential, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PresentOrg:
    org_id: str
    name: str
    retention: Retention
    second_person: bool
    rulesets: Mapping[str, PresentRuleset] = field(default_factory=dict)
    apps: Mapping[str, PresentApp] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)  # digest of the current schema by root path


@dataclass(frozen=True, slots=True)
class PresentProxy:
    proxy_id: str
    name: str
    orgs: tuple[str, ...]  # sorted names
    enabled: bool
    prunable: bool  # True: it serves only organisations that the directory names


@dataclass(frozen=True, slots=True)
class PresentOperator:
    operator_id: str
    name: str
    roles: Mapping[str, Role]  # keys are names of organisations or "*"
    enabled: bool


@dataclass(frozen=True, slots=True)
class Present:
    organisations: Mapping[str, PresentOrg]
    proxies: Mapping[str, PresentProxy]
    operators: Mapping[str, PresentOperator]
