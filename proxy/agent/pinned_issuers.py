"""Choose the issuers from which the agent reads keys, with fair shares for organisations. No I/O."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from proxy.rules.snapshot import App
from proxy.wire.models import MOST_ISSUERS_OF_ORG, SyncFederated


@dataclass(slots=True)
class Pinned:
    """One issuer whose keys have to be discovered, with the enabled applications that accept this issuer."""

    issuer: str
    apps: list[App] = field(default_factory=list)

    @property
    def org_ids(self) -> list[str]:
        return sorted({app.org_id for app in self.apps})

    @property
    def described(self) -> str:
        """Address of an issuer, with the applications that accept this issuer."""
        more = f" and {len(self.apps) - 1} more" if len(self.apps) > 1 else ""
        return f"{self.issuer} (application {self.apps[0].name}{more})"


@dataclass(frozen=True, slots=True)
class Share:
    """Issuers whose keys are read, and issuers left out because an organisation exceeds its limit.

    `payer` maps each issuer to one organisation: the issuer counts against the limit of this organisation. If
    several organisations name the same token issuer, the issuer counts against the limit of the organisation
    that names the fewest issuers. One organisation therefore cannot delay the reading of an issuer's keys for
    another organisation.
    """

    read: Mapping[str, Pinned]
    payer: Mapping[str, str]
    left_out: Mapping[str, Sequence[Pinned]]  # keys are organisations with too many issuers


def pinned_issuers(apps: Iterable[App]) -> dict[str, Pinned]:
    """Return, by address, the issuers of enabled applications whose issuer keys have to be discovered."""
    found: dict[str, Pinned] = {}
    for app in apps:
        if app.enabled:
            for issuer in sorted(issuers_of(app)):
                found.setdefault(issuer, Pinned(issuer)).apps.append(app)
    return dict(sorted(found.items()))


def issuers_of(app: App) -> set[str]:
    return {
        each.issuer for each in app.credentials or () if isinstance(each, SyncFederated) and each.keys is None
    }


def share(pinned: Mapping[str, Pinned], known: Container[str]) -> Share:
    """Choose the issuers from which the agent reads keys, with a separate limit for each organisation.

    Issuers whose keys were already read (`known`) are chosen first.
    """
    of_org: dict[str, list[Pinned]] = {}
    for each in sorted(pinned.values(), key=lambda each: (each.issuer not in known, each.issuer)):
        for org_id in each.org_ids:
            of_org.setdefault(org_id, []).append(each)
    read: dict[str, Pinned] = {}
    payer: dict[str, str] = {}
    for org_id, wanted in sorted(of_org.items(), key=lambda item: (len(item[1]), item[0])):
        for each in wanted[:MOST_ISSUERS_OF_ORG]:
            read.setdefault(each.issuer, each)
            payer.setdefault(each.issuer, org_id)
    left_out = {
        org_id: [each for each in wanted[MOST_ISSUERS_OF_ORG:] if each.issuer not in read]
        for org_id, wanted in of_org.items()
        if len(wanted) > MOST_ISSUERS_OF_ORG
    }
    return Share(read, payer, {org_id: rest for org_id, rest in left_out.items() if rest})
