"""The table of the demo: each request with its verdict, for terminals of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tests.demo_requests import Result, parsed

STYLES: Final = {"allow": "green", "filter": "yellow", "block": "red", "log_only": "cyan"}
# A narrower terminal has no room for the last column. An even narrower one has the case and the rule below
# the request.
_ALL_COLUMNS: Final = 170
_WITHOUT_CHANGES: Final = 120
_REQUEST: Final = 57  # columns: as wide as the longest spelling of a path in the demo
_REASONS: Final = {"default": "no rule (default)"}


def table(results: Sequence[Result], width: int) -> Iterator[RenderableType]:
    """Yield a heading and a table for each group of requests; the first table names the columns."""
    for number, (heading, group) in enumerate(groupby(results, lambda each: each.heading)):
        yield Text(f"\n{heading}", style="bold")
        shown = _columns(width, named=number == 0)
        for result in group:
            shown.add_row(*_cells(result, width))
        yield shown


def _columns(width: int, *, named: bool) -> Table:
    shown = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False, show_header=named)
    shown.header_style = "dim"
    shown.add_column("Verdict", width=8)
    shown.add_column("Status", width=6, justify="right")
    if width >= _WITHOUT_CHANGES:
        shown.add_column("Case", width=28 if width >= _ALL_COLUMNS else 20)
    shown.add_column("Method", width=6)
    if width < _WITHOUT_CHANGES:
        shown.add_column("Request, and below it the case and the rule", overflow="fold", ratio=1)
        return shown
    room = max(0, width - _ALL_COLUMNS) // 2
    shown.add_column("Request", overflow="fold", width=_REQUEST + room)
    shown.add_column("Rule or reason", width=26 if width >= _ALL_COLUMNS else 18, overflow="fold")
    if width >= _ALL_COLUMNS:
        shown.add_column("Change of the response", overflow="fold", ratio=1)
    return shown


def _cells(result: Result, width: int) -> Iterator[Text]:
    event = result.events[0] if result.events else {}
    verdict = event.get("verdict", "-")
    case, rule = Text(result.row.title, style="dim"), Text(_rule(event))
    yield Text(verdict, style=STYLES.get(verdict, "dim"))
    yield Text(str(result.status))
    if width >= _WITHOUT_CHANGES:
        yield case
    yield Text(result.row.method)
    if width < _WITHOUT_CHANGES:
        yield Text(result.target) + Text(f"\n{case} · {rule}", style="dim")
        return
    yield Text(result.target)
    yield rule
    if width >= _ALL_COLUMNS:
        yield Text(_change(result))


def _rule(event: dict[str, Any]) -> str:
    deciding = event.get("ruleId") or event.get("reason") or "unauthenticated"
    logged = "".join(f" +{each}" for each in event.get("loggedRuleIds") or () if each != deciding)
    return _REASONS.get(deciding, deciding) + logged


def _change(result: Result) -> str:
    """Return a short description of how the client's response differs from the upstream's response."""
    if not result.status:
        return result.body.decode()
    if not result.seen:
        blocked = result.row.verdict == "block"
        return "not sent to Microsoft Graph" if blocked else "response of the proxy itself"
    if result.upstream_body is None:
        return f"none, {len(result.body):,} bytes streamed"
    if result.body == result.upstream_body:
        coding = result.header("Content-Encoding")
        return f"none, {len(result.body):,} bytes{f', {coding} kept' if coding else ''}"
    if not result.body or result.status >= 400:
        return "no body" if not result.body else "replaced by an error"
    return _difference(result.upstream_body, result.body)


def _difference(upstream: bytes, received: bytes) -> str:
    before, after = parsed(upstream), parsed(received)
    if before is None or after is None:
        return f"{len(upstream):,} to {len(received):,} bytes"
    gone = sorted(property_names(before) - property_names(after))
    more = f" and {len(gone) - 5} more" if len(gone) > 5 else ""
    report = [f"removed {', '.join(gone[:5])}{more}"] if gone else []
    if before.get("@odata.nextLink") != after.get("@odata.nextLink"):
        report.append("nextLink points to the proxy")
    return "; ".join(report) or f"{len(upstream):,} to {len(received):,} bytes"


def property_names(value: Any, prefix: str = "") -> set[str]:
    """Return the paths of all properties in a JSON value.

    The returned paths contain no list positions, and omit the property `value` that holds the items of a
    page.
    """
    if isinstance(value, list):
        return set().union(*(property_names(item, prefix) for item in value))
    if not isinstance(value, dict):
        return set()
    names = {prefix + key for key in value}
    for key, item in value.items():
        names |= property_names(item, prefix if key == "value" else f"{prefix}{key}.")
    return names
