"""Measure how long a general policy engine takes for one decision on the rules of bench/decisions.py.

The benchmark writes its rules in the form that the policy engine evaluates fastest. The module imports
nothing from this project, so any Python installation with the engine can run it. The arguments of the module
are the engine's name and the number of rules. The module prints microseconds of processor time. The benchmark
gives the first path segment after /v1.0 to the policy engine as a separate field. The policy engine can
therefore select rules by the first segment before it compares patterns.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

SEGMENT, METHOD, CONSISTENCY = "users", "GET", "eventual"
PATIENCE_SECONDS = 2.0

KEYS = [0, 2]
CASBIN_MODEL = """
[request_definition]
r = segment, path, method, consistency
[policy_definition]
p = segment, path, method, consistency
[policy_effect]
e = some(where (p.eft == allow))
[matchers]
m = keyMatch2(r.path, p.path) && r.method == p.method && \
(p.consistency == "*" || r.consistency == p.consistency)
"""

REGO = """
package graph
import rego.v1
default allow := false
allow if {
    rule := data.rules[input.segment]
    rule.method in {"*", input.method}
    rule.consistency in {"*", input.consistency}
    startswith(input.path, rule.prefix)
    not contains(substring(input.path, count(rule.prefix), -1), "/")
}
"""


def paths() -> Iterator[str]:
    """Yield paths with different ids, so that no response can be cached."""
    return map("/v1.0/users/ada{}@contoso.com".format, itertools.count())


def cedarpy(count: int) -> Callable[[], bool]:
    engine, asked = importlib.import_module("cedarpy"), paths()
    policies = [
        f'permit(principal, action, resource == Graph::"r{n}") when {{ context.path like "/v1.0/r{n}/*" }};'
        for n in range(count - 1)
    ]
    policies.append(
        f'permit(principal, action == Action::"{METHOD}", resource == Graph::"{SEGMENT}")'
        f' when {{ context.path like "/v1.0/{SEGMENT}/*" && context.consistency == "{CONSISTENCY}" }};'
    )
    parsed = engine.PolicySet.from_str("\n".join(policies))
    entities = engine.Entities.from_json_str("[]")

    def decide() -> bool:
        request = {
            "principal": 'App::"app-1"',
            "action": f'Action::"{METHOD}"',
            "resource": f'Graph::"{SEGMENT}"',
            "context": {"path": next(asked), "consistency": CONSISTENCY},
        }
        return bool(engine.is_authorized(request, parsed, entities).allowed)

    return decide


def casbin(count: int) -> Callable[[], bool]:
    engine, asked = importlib.import_module("casbin"), paths()
    # The engine looks rules up by segment and method, so each method needs its own rule.
    model = importlib.import_module("casbin.model.model_fast").FastModel(KEYS)
    model.load_model_from_text(CASBIN_MODEL)
    enforcer = engine.FastEnforcer(model, cache_key_order=KEYS)
    enforcer.add_policies([[f"r{n}", f"/v1.0/r{n}/:id", METHOD, "*"] for n in range(count - 1)])
    enforcer.add_policy(SEGMENT, f"/v1.0/{SEGMENT}/:id", METHOD, CONSISTENCY)
    return lambda: bool(enforcer.enforce(SEGMENT, next(asked), METHOD, CONSISTENCY))


def regopy(count: int) -> Callable[[], bool]:
    engine, asked = importlib.import_module("regopy"), paths()
    rules: dict[str, Any] = {
        f"r{n}": {"prefix": f"/v1.0/r{n}/", "method": "*", "consistency": "*"} for n in range(count - 1)
    }
    rules[SEGMENT] = {"prefix": f"/v1.0/{SEGMENT}/", "method": METHOD, "consistency": CONSISTENCY}
    interpreter = engine.Interpreter()
    interpreter.add_data({"rules": rules})
    interpreter.add_module("graph", REGO)

    def decide() -> bool:
        interpreter.set_input(
            {"segment": SEGMENT, "path": next(asked), "method": METHOD, "consistency": CONSISTENCY}
        )
        return interpreter.query("data.graph.allow").results[0].expressions[0] is True

    return decide


def microseconds(decide: Callable[[], bool]) -> float:
    """Return the microseconds of one decision: the median of batches, or the first decision if it is slow."""
    started = time.process_time()
    if not decide():
        raise SystemExit("the policy engine denied a request that its rules allow")
    first = time.process_time() - started
    if first > PATIENCE_SECONDS:
        return first * 1e6
    batch = max(1, int(0.02 / max(first, 1e-6)))
    taken = []
    until = time.process_time() + PATIENCE_SECONDS
    while time.process_time() < until:
        started = time.process_time()
        for _ in range(batch):
            decide()
        taken.append((time.process_time() - started) / batch)
    return median(taken) * 1e6


ENGINES = {"cedarpy": cedarpy, "casbin": casbin, "regopy": regopy}

if __name__ == "__main__":
    print(microseconds(ENGINES[sys.argv[1]](int(sys.argv[2]))))
