"""The service schemas against which the proxy compiled one ruleset."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from proxy.policy.resource_model import ResourceModel
from proxy.policy.ruleset import Ruleset

_ROOT: Final = re.compile(r"/|(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*){1,8}")
_LONGEST_ROOT: Final = 200


class InvalidRoot(ValueError):
    """Error because a text is not the root path of a service."""


def folded_root(text: str) -> str:
    """Return the root path in lower case, such as `/v1.0`.

    Raise InvalidRoot for a text that is not a root path.
    """
    root = text.rstrip("/") or "/"
    if len(root) > _LONGEST_ROOT or not text.startswith("/") or _ROOT.fullmatch(root) is None:
        raise InvalidRoot(f"{text[:_LONGEST_ROOT]!r} is not the root path of a service, such as /v1.0")
    return root.lower()


def root_segments(root: str) -> tuple[str, ...]:
    """Return the segments of a root path in lower case, or no segments for the path `/`."""
    return tuple(root[1:].split("/")) if root != "/" else ()


class Schemas:
    """Schemas by the root path of their service, as lower-case segments such as `("api", "data", "v9.2")`."""

    __slots__ = ("_by_root", "_longest")

    def __init__(self, by_root: Mapping[tuple[str, ...], ResourceModel]) -> None:
        self._by_root: Final[dict[tuple[str, ...], ResourceModel]] = dict(by_root)
        self._longest: Final[int] = max(map(len, by_root), default=-1)

    def of(self, folded: Sequence[str]) -> tuple[ResourceModel, int] | None:
        """Return the schema that applies to a path, and the number of segments in the schema's root.

        If the roots of several schemas match, the longest root takes precedence.
        """
        for length in range(min(self._longest, len(folded)), -1, -1):
            model = self._by_root.get(tuple(folded[:length]))
            if model is not None:
                return model, length
        return None

    @property
    def root_words(self) -> frozenset[str]:
        """Path segments in the root paths, such as `/v1.0`, of all services that have a schema."""
        return frozenset([word for root in self._by_root for word in root])

    @property
    def models(self) -> tuple[ResourceModel, ...]:
        return tuple(self._by_root.values())


NO_SCHEMAS: Final = Schemas({})


def needs_schemas(ruleset: Ruleset) -> bool:
    """Return True if the ruleset has a rule that can be compiled only with a schema."""
    return any(rule.match.names_things for rule in ruleset.rules)
