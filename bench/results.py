"""Write bench/RESULTS.md and the plot from the results of a complete benchmark run."""

from __future__ import annotations

import datetime
import subprocess
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from bench.cost import Pace
from bench.engines import ENGINES
from bench.plot import bars
from bench.report import Table
from bench.tools import ROOT, find, machine, version, wheels
from proxy.supervisor.supervisor import form_of_data_path

REPORT: Final = ROOT / "bench" / "RESULTS.md"
PLOT: Final = ROOT / "bench" / "results.svg"
PROGRAMS: Final = ("nginx", "haproxy", "envoy", "wrk")
LIBRARIES: Final = ("aiohttp", "uvloop", "orjson")


def write(tables: Sequence[Table], pace: Pace, others: float) -> None:
    """Write the results of a benchmark run to bench/RESULTS.md.

    `others` is the fraction of the machine's cores that other programs used at the start of the run.
    """
    PLOT.write_text(bars([table for table in tables if table.bars]))
    REPORT.write_text("\n".join([_preface(pace, others), *(table.as_markdown() for table in tables)]))
    print(f"written: {REPORT.relative_to(ROOT)}, {PLOT.relative_to(ROOT)}")


def _preface(pace: Pace, others: float) -> str:
    found = [f"{name} {version(name)}" for name in PROGRAMS if find(name)]
    found += [f"{name} {metadata.version(name)}" for name in LIBRARIES]
    versions = ", ".join(found + wheels(list(ENGINES)))
    absent = [name for name in PROGRAMS if not find(name)]
    today = datetime.datetime.now(datetime.UTC).date()
    lines = [
        "# Comparison",
        "",
        f"`./dev bench` wrote these results on {today}, with commit `{_commit()}`.",
        "",
        f"- Machine: {machine()}. Other programs used {others:.0%} of the cores when the benchmark began.",
        f"- Versions: {versions}." + (f" Not on this machine: {', '.join(absent)}." if absent else ""),
        f"- Graphward: the data path is {form_of_data_path()}, unless a row says otherwise.",
        (
            f"- Rounds: {pace.rounds} rounds of {pace.seconds} s for each server; the figures are medians of "
            "the rounds."
        ),
        "- Method and jobs: [README.md](README.md).",
        "",
        "![Processor time per request](results.svg)",
        "",
    ]
    return "\n".join(lines)


def _commit() -> str:
    report = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return report.stdout.strip() or "unknown"
