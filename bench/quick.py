"""Quick check: measure Graphward and the byte relay in the same minute.

The byte relay only forwards bytes between the client and the upstream. The program divides Graphward's
processor time per request by that of the relay, and compares this ratio with bench/baseline.toml.

The check needs only this repository: it uses the repository's own load client and upstream.
"""

from __future__ import annotations

import tomllib
from statistics import median
from typing import Final

from bench import proofs
from bench.cost import Pace, Peer, measure, paired
from bench.graphward import ALLOW
from bench.load import ONE_PATH, own_client, request_loader
from bench.rig import Rig
from bench.tools import ROOT

BASELINE: Final = ROOT / "bench" / "baseline.toml"
PACE: Final = Pace(rounds=5, seconds=2)


def check(rig: Rig) -> int:
    """Return the exit status: 1 if the measured ratio clearly exceeds the ratio in bench/baseline.toml."""
    committed = tomllib.loads(BASELINE.read_text())
    baseline, tolerance = float(committed["ratio"]), float(committed["tolerance"])
    loader = request_loader(rig.run, rig.token, ONE_PATH, client=own_client)
    own = rig.upstream.own
    relay = Peer("relay", lambda: rig.relay(upstream_port=own), loader)
    graphward = Peer("graphward", lambda: rig.graphward(rules=ALLOW, upstream_port=own), loader)
    with rig.start_own_upstream():
        measure([relay, graphward], PACE, proofs.one_user(rig))
    ratios = paired(graphward, relay)
    ratio, limit = median(ratios), baseline * (1 + tolerance)
    for peer in (relay, graphward):
        print(f"{peer.name:10} {peer.median(lambda sample: sample.per_request):6.1f} µs of CPU per request")
    print(f"ratio      {ratio:6.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
    print(f"committed  {baseline:6.2f}, and up to {limit:.2f} is taken for noise")
    if ratio > limit:
        print("Worse. If this is intended, write the new ratio to bench/baseline.toml and state the reason.")
        return 1
    return 0
