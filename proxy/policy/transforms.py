"""What a filter does to properties, as plain values that combine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_STRIP = "strip:"
_ALLOW = "allow:"


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
        """Every path under the name that an audit event has for it."""
        return (*map(strip_name, self.strip), *self.allow_names)

    @property
    def allow_names(self) -> tuple[str, ...]:
        """The allow list under the names that an audit event has for it; an empty list has one name."""
        if self.allow is None:
            return ()
        return tuple(_ALLOW + path for path in self.allow or ("",))


def strip_name(path: str) -> str:
    return _STRIP + path


@dataclass(frozen=True, slots=True)
class Named:
    """Names of transforms, apart: what was removed by name, and the allow list, if there was one."""

    stripped: tuple[str, ...]
    allowed: tuple[str, ...] | None


def parse_names(names: Iterable[str]) -> Named:
    """Separate stripped from allowed properties. A mark of how much was cut stays in the list it ends."""
    stripped: list[str] = []
    allowed: list[str] | None = None
    for name in names:
        if name.startswith(_ALLOW):
            allowed = [] if allowed is None else allowed
            if len(name) > len(_ALLOW):
                allowed.append(name.removeprefix(_ALLOW))
        elif allowed is None or name.startswith(_STRIP):
            stripped.append(name.removeprefix(_STRIP))
        else:
            allowed.append(name)
    return Named(tuple(stripped), None if allowed is None else tuple(allowed))


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
