"""One format for numbers, shares and counts in all texts for people, as pure functions."""

from __future__ import annotations


def number(value: float) -> str:
    """Format a whole number with its digits in groups of three, such as `29,774`."""
    return f"{value:,.0f}"


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun, such as `1 proxy`, `2 proxies` or `1,200 events`."""
    return f"{number(count)} {noun if count == 1 else plural or _plural(noun)}"


def percent(part: float, whole: float) -> str:
    """Format a share as `23.7%`.

    A share that is not zero is never shown as 0%, and a share that is not everything never as 100%.
    """
    if whole <= 0 or part <= 0:
        return "0%"
    share = part / whole * 100
    if share < 0.1:
        return "<0.1%"
    if share > 99.9 and part < whole:
        return ">99.9%"
    return f"{share:.1f}".removesuffix(".0") + "%"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("s", "x", "ch", "sh")) else f"{noun}s"
