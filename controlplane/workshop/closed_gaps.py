"""Explain why this release refuses a request that an earlier release allowed, and suggest an allow rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from controlplane.workshop.implied_traffic import is_collection
from proxy.policy.canonical import MalformedTarget, Target, canonicalise
from proxy.policy.compile import CompiledRuleset
from proxy.policy.decision import Decision
from proxy.policy.path_shapes import shapes_of
from proxy.policy.ruleset import DEFAULT_RULE_ID

_ANY: Final = ("{any}", "*")  # stand for any key and any relation in the label of an implied request


@dataclass(frozen=True, slots=True)
class ClosedGap:
    """A policy gap that this release closes, and that a recorded request used.

    `cause` describes how the current release evaluates the recorded request. `method` and `path` describe an
    allow rule that would match the recorded request. `method` and `path` are empty if a rule refuses the
    request.
    """

    cause: str
    method: str = ""
    path: str = ""

    @property
    def line(self) -> str:
        """Return the `match` of the rule to add, or an empty text if a rule refuses the request."""
        return f'match: {{methods: [{self.method}], path: ["{self.path}"]}}' if self.path else ""


def gap_of_implied(decision: Decision, asked: Target) -> ClosedGap | None:
    """Return the closed gap if a request that `asked` implies made the verdict stricter."""
    cause, _, request = decision.implied.partition(": ")
    method, _, target = request.partition(" ")
    if not target:
        return None
    path = target.partition("?")[0]
    if path.startswith(f"{asked.path}/") and is_collection(asked):
        below = path.removeprefix(f"{asked.path}/").removeprefix("{any}/")
        path = f"{asked.path}/{{any}}/{below}"
    path = _pattern(path)
    if decision.rule_id != DEFAULT_RULE_ID or not path:
        return ClosedGap(f"{cause} implies {method} {path or target}")
    return ClosedGap(f"{cause} implies {method} {path}", method, path)


def gap_of_key(rules: CompiledRuleset, method: str, target: Target) -> ClosedGap | None:
    """Return the policy gap of earlier releases in which an operation's name matched as an object ID."""
    for rule_id, pattern, operation in _operations(rules, method, target):
        cause = f"`{rule_id}` no longer takes the operation {operation} for a key"
        return ClosedGap(cause, method, pattern)
    return None


def _operations(rules: CompiledRuleset, method: str, target: Target) -> Iterator[tuple[str, str, str]]:
    for reading in target.readings:
        for name in reading.names:
            for entry in rules.rules.tree.find(name)[0]:
                operation = entry.operation(name, method.upper())
                if operation is not None and entry.compiled.rule.verdict == "allow":
                    words = [
                        word if word is not None or name.folded[at] != operation else operation
                        for at, word in enumerate(entry.pattern.segments)
                    ]
                    yield entry.compiled.rule.id, _joined(words, rest=entry.pattern.rest), operation


def _pattern(path: str) -> str:
    """Return the path with a parameter for each ID, or an empty text if the path cannot be read."""
    try:
        target = canonicalise("/".join("id1" if segment in _ANY else segment for segment in path.split("/")))
    except MalformedTarget:
        return ""
    shapes = shapes_of("GET", target)
    if not shapes:
        return ""
    return _joined([*shapes[0].shape], rest=False)


def _joined(words: list[str | None], *, rest: bool) -> str:
    ids = 0
    spelled: list[str] = []
    for word in words:
        if word is None:
            ids += 1
            word = "{id}" if ids == 1 else f"{{id{ids}}}"
        spelled.append(word)
    return "".join(f"/{word}" for word in spelled) + ("/**" if rest else "")
