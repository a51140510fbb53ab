"""What a filter does to properties, as plain values that combine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transforms:
    """Property paths as the rules write them; dots walk into objects and arrays (``manager.mail``)."""

    strip: tuple[str, ...] = ()
    allow: tuple[str, ...] | None = None  # None: no whitelist

    def combined(self, other: Transforms) -> Transforms:
        """Both at once: strips are united, allows intersected. Never shows more than either alone."""
        return Transforms(_united(self.strip, other.strip), _intersected_allows(self.allow, other.allow))

    @property
    def names(self) -> tuple[str, ...]:
        """What the audit event records."""
        strips = tuple(f"strip:{path}" for path in self.strip)
        if self.allow is None:
            return strips
        return strips + tuple(f"allow:{path}" for path in self.allow or ("",))


def covers(shorter: str, longer: str) -> bool:
    """Whether the property path `shorter` is `longer` or an object that contains it."""
    short, long = shorter.casefold(), longer.casefold()
    # The dots of an annotation's name (`photo@odata.type`) lead nowhere.
    return long == short or (long.startswith(short + ".") and "@" not in short)


def _united(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    by_name: dict[str, str] = {}
    for path in first + second:
        by_name.setdefault(path.casefold(), path)
    return tuple(by_name.values())


def _intersected_allows(
    first: tuple[str, ...] | None, second: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    if first is None:
        return second
    if second is None:
        return first
    # An allowed object allows all within it, so `manager` and `manager.mail` meet in `manager.mail`.
    narrowed = [path for path in first if any(covers(other, path) for other in second)]
    narrowed += [path for path in second if any(covers(other, path) for other in first)]
    return _united(tuple(narrowed), ())
