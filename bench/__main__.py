"""Command line of ./dev bench: the whole comparison or some of its jobs, the quick check, and the suites."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench import audit, decisions, jobs, large, latency, memory, quick, results
from bench.cost import Pace
from bench.load import LoadFailed
from bench.report import Table
from bench.rig import Missing, Rig
from bench.servers import ServerFailed
from bench.tools import busy_elsewhere, find

MUCH_ELSEWHERE: Final = 0.05
JOBS: Final[dict[str, Callable[[Rig, Pace], Table]]] = {
    "J1": jobs.pass_through,
    "J2": jobs.evaluated,
    "J3": jobs.long_list,
    "J4": jobs.stripped,
    "TLS": jobs.both_sides_tls,
    "WORKERS": jobs.two_workers,
    "LARGE": large.bodies,
    "AUDIT": audit.delivery,
    "LATENCY": latency.added,
    "MEMORY": memory.taken,
    "DECIDE": decisions.beside_engines,
}


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["suites"]:
        os.execv(
            sys.executable,
            [
                sys.executable,
                "-m",
                "pytest",
                "--import-mode=append",
                "bench/",
                "--benchmark-only",
                *arguments[1:],
            ],
        )
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="graphward-bench-") as run:
        rig = Rig(Path(run))
        if options.quick:
            return quick.check(rig)
        try:
            with rig.start_upstream():
                return _run(rig, options.jobs, Pace(options.rounds, options.seconds))
        except Missing as error:
            print(f"./dev bench: the upstream needs {error}, which is not installed", file=sys.stderr)
            return 1


def _run(rig: Rig, chosen: Sequence[str], pace: Pace) -> int:
    """Run the chosen benchmark jobs, and print the result table of each job.

    If no benchmark fails in a complete run, write the report.
    """
    others = busy_elsewhere()
    if others > MUCH_ELSEWHERE:
        print(f"Others use {others:.0%} of the cores: this affects the latencies most.\n", flush=True)
    tables, failed = [], False
    for job in chosen or JOBS:
        try:
            tables.append(JOBS[job](rig, pace))
        except (ServerFailed, LoadFailed) as error:
            print(f"{job} failed: {error}\n", file=sys.stderr, flush=True)
            failed = True
        else:
            print(tables[-1].as_text(), flush=True)
    if failed:
        return 1
    if not chosen:
        results.write(tables, pace, others)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help=f"jobs to run, of {', '.join(JOBS)}; all by default"
    )
    parser.add_argument(
        "--quick", action="store_true", help="compare only graphward and a byte relay, for half a minute"
    )
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds for each server (5)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a round in seconds (2)")
    options = parser.parse_args(arguments)
    unknown = [job for job in options.jobs if job not in JOBS]
    if unknown:
        parser.error(f"unknown job {unknown[0]}; there are {', '.join(JOBS)}")
    if find("wrk") is None and not options.quick:
        print("wrk is not installed: a client in Python makes the load, and may be too slow.\n")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
