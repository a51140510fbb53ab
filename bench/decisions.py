"""Measure the cost of one decision, compared with general policy engines on the same rules."""

from __future__ import annotations

import subprocess
from typing import Final

from bench.cost import Pace
from bench.engines import CONSISTENCY, ENGINES, METHOD, SEGMENT, microseconds, paths
from bench.report import Table
from bench.rig import Rig
from bench.tools import ROOT, peers_python
from proxy.policy.canonical import canonicalise
from proxy.policy.compile import compile_ruleset
from proxy.policy.decision import RequestFacts
from proxy.policy.ruleset_yaml import parse_ruleset

COUNTS: Final = (10, 1_000, 10_000)
GIVE_UP_SECONDS: Final = 60


def beside_engines(_rig: Rig, _pace: Pace) -> Table:
    rows = [("graphward", *(f"{_graphward(count):,.1f}" for count in COUNTS))]
    missing = []
    for engine in ENGINES:
        report = subprocess.run([peers_python(), "-c", f"import {engine}"], capture_output=True)
        if report.returncode:
            missing.append(f"{engine} was not measured: the Python in BENCH_PYTHON does not have it.")
        else:
            rows.append((engine, *(_engine(engine, count) for count in COUNTS)))
    columns = ("engine", *(f"{count:,} rules, µs" for count in COUNTS))
    notes = [
        (
            "One rule of each rule set decides, by path, method and a header; the other rules have other "
            "paths. The figures of the policy engines are processor time."
        ),
        (
            "graphward also parses the request target in any spelling; the other engines receive a path "
            "segment that was extracted before."
        ),
    ]
    return Table(
        "DECIDE", "one decision, compared with general policy engines", columns, rows, (*missing, *notes)
    )


def _graphward(count: int) -> float:
    unrelated = "".join(
        f'  - {{id: u{number}, match: {{path: ["/v1.0/r{number}/{{id}}"]}}, verdict: allow}}\n'
        for number in range(count - 1)
    )
    rules = (
        f"version: 1\nname: bench\ndefault: block\nrules:\n{unrelated}"
        f"  - {{id: own, match: {{methods: [{METHOD}], path: ['/v1.0/{SEGMENT}/{{id}}']}},\n"
        f"     conditions: [{{header: ConsistencyLevel, equals: {CONSISTENCY}}}], verdict: allow}}\n"
    )
    compiled = compile_ruleset(parse_ruleset(rules))
    asked = paths()
    headers = ((b"ConsistencyLevel", CONSISTENCY.encode()),)

    def decide() -> bool:
        target = canonicalise(next(asked))
        facts = RequestFacts(METHOD, target, headers, "127.0.0.1", 1.79e9)
        return compiled.plan(METHOD, target).decide(facts).rule_id == "own"

    return microseconds(decide)


def _engine(engine: str, count: int) -> str:
    command = [peers_python(), str(ROOT / "bench" / "engines.py"), engine, str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIVE_UP_SECONDS)
    except subprocess.TimeoutExpired:
        return f"over {GIVE_UP_SECONDS} s"
    if done.returncode:
        return "failed"
    return f"{float(done.stdout):,.1f}"
