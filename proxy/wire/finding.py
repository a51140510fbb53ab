"""Findings of the `--doctor` commands, as lines for a person or as one JSON object."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from proxy.wire.figures import counted
from proxy.wire.log_line import escaped, one_line

Status = Literal["ok", "warn", "fail"]

_RANK: Final[tuple[Status, ...]] = ("ok", "warn", "fail")
_MASK: Final = "********"
_SHORTEST_MASKED: Final = 6  # characters; shorter secrets could occur in ordinary words


class Finding(msgspec.Struct, frozen=True):
    check: str
    status: Status
    found: str  # one line that states the result
    fix: str = ""  # one line with the remedy: a command or a setting


def worst(findings: Iterable[Finding]) -> Status:
    return max((each.status for each in findings), key=_RANK.index, default="ok")


def masked(findings: Iterable[Finding], secrets: Iterable[str]) -> list[Finding]:
    """Mask secrets in the texts of findings, because the text of an error may quote a secret."""
    hidden = sorted({each for each in secrets if len(each) >= _SHORTEST_MASKED}, key=len, reverse=True)

    def clean(text: str) -> str:
        for secret in hidden:
            text = text.replace(secret, _MASK)
        return text

    return [Finding(each.check, each.status, clean(each.found), clean(each.fix)) for each in findings]


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as JSON, with escapes in place of characters that could control a terminal."""
    return escaped(msgspec.json.encode({"status": worst(findings), "findings": findings}).decode())


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """Sort the findings so that failures are at the end, where a person sees them in a terminal."""
    return sorted(findings, key=lambda finding: _RANK.index(finding.status))


def summary(findings: Sequence[Finding]) -> str:
    counts = [sum(each.status == status for each in findings) for status in _RANK]
    return f"{counts[0]} ok, {counted(counts[1], 'warning')}, {counts[2]} failed"


def as_lines(findings: Sequence[Finding]) -> Iterator[str]:
    width = max((len(each.check) for each in findings), default=0)
    for each in by_weight(findings):
        yield one_line(f"{each.status:4}  {each.check:{width}}  {each.found}")
        if each.fix:
            yield one_line(f"{'':4}  {'':{width}}  -> {each.fix}")
    yield summary(findings)
