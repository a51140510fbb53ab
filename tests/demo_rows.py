"""The requests of the demo with their expected results, in groups and in the order of sending."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from tests.fakes.examples import Example, examples

PAYROLL: Final = "payroll"  # applications, followed by the rulesets that evaluate them
POWER_BI: Final = "power-bi"
HR_RULES: Final = "hr-sync"
REPORTING_RULES: Final = "reporting"
UPLOAD: Final = bytes(range(256)) * 4096
ADA: Final = "/v1.0/users/ada@contoso.com"


@dataclass(frozen=True, slots=True)
class Row:
    """A request with the expected response, audit event and upstream request."""

    title: str
    target: str  # if empty: the target of the previous response's nextLink
    status: int
    # verdict of its audit event; None if the application is unknown, so that there is no event
    verdict: str | None
    rule: str | None
    method: str = "GET"
    app: str = PAYROLL
    token: Literal["own", "none", "damaged", "upstream"] = "own"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    chunked: bool = False
    hidden: tuple[str, ...] = ()  # properties that must not occur anywhere in the response
    unchanged: bool = False  # the response's body is byte for byte the upstream's
    parts: tuple[tuple[int, str], ...] = ()  # status and verdict of each sub-request of a $batch

    @property
    def forwarded(self) -> bool:
        """Return whether the proxy sends the request upstream."""
        return self.verdict in ("allow", "filter", "log_only") or self.rule == "no-directors"


CONTACTS: Final = ("mobilePhone", "businessPhones", "otherMails")


def groups() -> Iterator[tuple[str, Iterator[Row]]]:
    """Yield the rows of the demo, grouped by heading.

    The last group of rows stays visible on the screen at the end of the demo.
    """
    yield "Allowed", _allowed()
    yield "Filtered: properties are removed from the response", _filtered()
    yield "Blocked", _blocked()
    yield "Blocked: a hidden property that is read or probed", _hidden()
    yield "Errors of Microsoft Graph", _upstream_errors()
    yield "Bodies: uploads, new users, three requests in one", _uploads_and_batch()
    yield "Another application, with the rules of another ruleset", _reporting()
    yield "Without a valid token: refused, and no application to name in an audit event", _strangers()
    yield "Disguised: other spellings of a path that the rule no-mail blocks", _disguised()


def _example(name: str) -> Example:
    return next(each for each in examples() if each.id == name)


def _allowed() -> Iterator[Row]:
    for name in ("fx015", "fx016", "fx013", "fx054"):
        target = _example(name).target
        yield Row("byte for byte", target, 200, "allow", "read-directory", unchanged=True)
    gzip = {"Accept-Encoding": "gzip"}
    yield Row(
        "compressed response",
        "/v1.0/organization",
        200,
        "allow",
        "read-directory",
        headers=gzip,
        unchanged=True,
    )
    yield Row("HEAD request", "/v1.0/organization", 200, "allow", "read-directory", method="HEAD")
    yield Row("one megabyte", "/v1.0/bytes/1000000", 200, "allow", "read-directory")
    yield Row("photo", f"{ADA}/photo/$value", 200, "allow", "photos", unchanged=True)
    known = {"If-None-Match": 'W/"photo-1"'}
    yield Row("photo that has not changed", f"{ADA}/photo/$value", 304, "allow", "photos", headers=known)
    yield Row("condition holds", "/v1.0/devices?$top=50", 200, "allow", "small-device-pages")


def _filtered() -> Iterator[Row]:
    rule = "hide-contacts"
    yield Row("list of users", "/v1.0/users?$top=5", 200, "filter", rule, hidden=CONTACTS)
    yield Row("second page of the list", "", 200, "filter", rule, hidden=CONTACTS)
    yield Row("last page of the list", "", 200, "filter", rule, hidden=CONTACTS)
    gzip = {"Accept-Encoding": "gzip, br"}
    yield Row("one user, compressed", ADA, 200, "filter", rule, headers=gzip, hidden=CONTACTS)
    yield Row("user within a user", f"{ADA}?$expand=manager", 200, "filter", rule, hidden=CONTACTS)
    yield Row("example of Graph's docs", "/v1.0/users", 200, "filter", rule, hidden=CONTACTS)
    group = ("description", "mail", "proxyAddresses", "createdDateTime")
    yield Row("allowed properties only", "/v1.0/groups", 200, "filter", "group-names", hidden=group)
    yield Row("one group", _example("fx007").target, 200, "filter", "group-names", hidden=group)


def _blocked() -> Iterator[Row]:
    yield Row("mail", f"{ADA}/messages", 403, "block", "no-mail")
    folder = f"{ADA}/mailFolders/inbox/childFolders/old/messages"
    yield Row("mail through a folder", folder, 403, "block", "no-mail")
    subscription = json.dumps({"changeType": "created", "resource": "users/ada@contoso.com/messages"})
    yield Row(
        "mail through a subscription", "/v1.0/subscriptions", 403, "block", "no-mail", "POST",
        headers={"Content-Type": "application/json"}, body=subscription.encode(),
    )  # fmt: skip
    yield Row("no rule matches", "/v1.0/applications", 403, "block", "default")
    yield Row("address outside the office", "/v1.0/auditLogs/directoryAudits", 403, "block", "default")
    yield Row("condition fails", "/v1.0/devices?$top=500", 403, "block", "default")
    yield Row("users of roles", "/v1.0/directoryRoles?$expand=members", 403, "block", "default")
    yield Row("users of devices", "/v1.0/devices?$top=5&$expand=registeredOwners", 403, "block", "default")
    yield Row("users of a manager", f"{ADA}?$expand=directReports", 403, "block", "default")
    yield Row("known by its response", "/v1.0/users/barbara@contoso.com", 403, "block", "no-directors")
    yield Row("malformed path", "/v1.0/users/%00", 400, "block", None)


def _disguised() -> Iterator[Row]:
    """Yield every spelling of the path that the rule `no-mail` blocks."""
    for title, target in (
        ("capitals", "/v1.0/Users/ada@contoso.com/MESSAGES"),
        ("percent-encoded", "/v1.0/users/ada@contoso.com/%6Dessages"),
        ("encoded twice", "/v1.0/users/ada@contoso.com/%256Dessages"),
        ("doubled slashes", "/v1.0//users/ada@contoso.com//messages"),
        ("dot segments", "/v1.0/organization/../users/ada@contoso.com/./messages"),
        ("encoded dots", "/v1.0/organization/%2e%2e/users/ada@contoso.com/messages"),
        ("OData key form", "/v1.0/users('ada@contoso.com')/messages"),
        ("type cast", f"{ADA}/microsoft.graph.user/messages"),
        ("trailing slash", f"{ADA}/messages/"),
    ):
        yield Row(title, target, 403, "block", "no-mail")


def _hidden() -> Iterator[Row]:
    rule = "hide-contacts"
    yield Row("hidden property", f"{ADA}/mobilePhone", 403, "block", rule)
    yield Row("its raw value", f"{ADA}/mobilePhone/$value", 403, "block", rule)
    probe = "/v1.0/users?$filter=startswith(mobilePhone,'%2B47')"
    yield Row("query that probes it", probe, 403, "block", rule)


def _upstream_errors() -> Iterator[Row]:
    allowed = ("allow", "read-directory")
    yield Row("throttled, Retry-After kept", "/v1.0/status/429?retryAfter=7", 429, *allowed, unchanged=True)
    yield Row("not found", "/v1.0/status/404", 404, *allowed, unchanged=True)
    yield Row("unavailable, SDKs retry", "/v1.0/status/503?retryAfter=3", 503, *allowed, unchanged=True)
    yield Row("internal error", "/v1.0/status/500", 502, *allowed)


def _uploads_and_batch() -> Iterator[Row]:
    for title, chunked in (("upload", False), ("upload in chunks", True)):
        target = "/v1.0/upload/report.bin"
        yield Row(title, target, 201, "allow", "uploads", "PUT", body=UPLOAD, chunked=chunked, unchanged=True)
    new = _example("fx003")
    json_type = {"Content-Type": "application/json"}
    yield Row(
        "new user of our domain", new.target, 201, "allow", "create-users", "POST",
        headers=json_type, body=new.request_body, unchanged=True,
    )  # fmt: skip
    outsider = new.request_body.replace(b"@contoso.onmicrosoft.com", b"@elsewhere.example")
    yield Row(
        "new user of another domain",
        new.target,
        403,
        "block",
        "default",
        "POST",
        headers=json_type,
        body=outsider,
    )
    parts = [
        {"id": "1", "method": "GET", "url": "/domains"},
        {"id": "2", "method": "GET", "url": "/users/ada@contoso.com/messages"},
        {"id": "3", "method": "GET", "url": "/users/alan@contoso.com"},
    ]
    yield Row(
        "three requests in one", "/v1.0/$batch", 200, "allow", None, "POST",
        headers=json_type, body=json.dumps({"requests": parts}).encode(), hidden=CONTACTS,
        parts=((200, "allow"), (403, "block"), (200, "filter")),
    )  # fmt: skip


def _reporting() -> Iterator[Row]:
    long_target, drive, group = _example("fx031").target, _example("fx045").target, _example("fx008")
    yield Row("log only", drive, 200, "log_only", "watch-own-data", app=POWER_BI, unchanged=True)
    yield Row("allowed by default", "/v1.0/applications", 200, "allow", "default", app=POWER_BI)
    yield Row("long query", long_target, 200, "allow", "default", app=POWER_BI)
    yield Row("read only", group.target, 403, "block", "read-only", "POST", POWER_BI, body=group.request_body)


def _strangers() -> Iterator[Row]:
    yield Row("no token", "/v1.0/organization", 401, None, None, token="none")
    yield Row("damaged token", "/v1.0/organization", 401, None, None, token="damaged")
    yield Row("token of Microsoft Graph", "/v1.0/organization", 401, None, None, token="upstream")
