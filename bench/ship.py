"""python -m bench.ship: measure the agent's cost of one audit event, from the spool to the control plane.

The spool segments are written before the measurement. The agent's collector, journal and shipper then send
the events to a server that only returns a signed 202 response. The batches have the sizes that an agent uses
while it delivers a backlog. The measured CPU time covers only the agent, because the receiving server has its
own process.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from aiohttp import web

from bench.test_audit import RECORD
from proxy.agent.audit import Audit, AuditOptions
from proxy.agent.control_plane import ControlPlane, Identity
from proxy.audit.payload import encode
from proxy.audit.spool import SpoolWriter
from proxy.config.tls import client_tls
from proxy.outbound.egress import DIRECT
from proxy.outbound.session import open_session
from proxy.wire.signing import SIGNATURE_HEADER, sign_response
from tests.fakes.lifeline import end_with_parent

WORKERS = 2
SECRET = b"s" * 32
SEGMENT_BYTES = 4 << 20


def respond_to_everything(port: int) -> None:
    end_with_parent()

    async def accepted(request: web.Request) -> web.Response:
        sent = json.loads(await request.read())
        said = {"batchId": sent["batchId"], "accepted": len(sent["events"]), "duplicate": False}
        body = json.dumps(said).encode()
        signature = sign_response(SECRET, request.headers[SIGNATURE_HEADER], body)
        return web.Response(status=202, body=body, headers={SIGNATURE_HEADER: signature})

    app = web.Application(client_max_size=8 << 20)
    app.add_routes([web.post("/audit", accepted)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


def fill(retention: Path, count: int) -> None:
    payload = encode(RECORD)
    for number in range(WORKERS):
        spool = SpoolWriter(
            retention,
            segment_bytes=SEGMENT_BYTES,
            max_bytes=1 << 40,
            when_full="drop-oldest",
            id_prefix=number + 1,
        )
        for _ in range(count // WORKERS):
            spool.append(RECORD.org_id, payload)
            if spool.needs_maintenance:
                spool.maintain()
        spool.close()


async def deliver(retention: Path, count: int, port: int, *, catch_up: bool) -> tuple[float, float]:
    """Return CPU and wall seconds until the last event is delivered."""
    options = AuditOptions(
        retention=retention,
        url=f"http://127.0.0.1:{port}/audit",
        max_disk_bytes=1 << 36,
        workers_room=0,
        when_full="drop-oldest",
        max_batch_size=500,
        replay_interval=60.0,
        catch_up=catch_up,
    )
    async with open_session(client_tls(None), DIRECT) as session:
        control_plane = ControlPlane(session, lambda: Identity("key", SECRET))
        audit = Audit(options, control_plane, lambda: "proxy-1", lambda: None)
        begun, spent = time.monotonic(), time.process_time()
        running = asyncio.create_task(audit.run())
        while True:
            status = await audit.status()
            journal = None if status is None else status.journal
            if journal and sum(journal.last_seq.values()) >= count and not journal.pending:
                break
            await asyncio.sleep(0.25)
        took = time.process_time() - spent, time.monotonic() - begun
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await audit.stop(1.0)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ship", description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--small",
        action="store_true",
        help="use only batches of 500 events, the size that an agent without a backlog uses",
    )
    parser.add_argument("--port", type=int, default=18732)
    given = parser.parse_args()
    server = multiprocessing.get_context("spawn").Process(target=respond_to_everything, args=(given.port,))
    server.start()
    time.sleep(2)
    costs = []
    try:
        for _ in range(given.runs):
            with tempfile.TemporaryDirectory() as directory:
                fill(Path(directory), given.events)
                cpu, wall = asyncio.run(
                    deliver(Path(directory), given.events, given.port, catch_up=not given.small)
                )
            costs.append(cpu / given.events * 1e6)
            print(f"{costs[-1]:.1f} µs of CPU an event, {given.events / wall:,.0f} events/s")
    finally:
        server.terminate()
        server.join()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"the agent: {median(costs):.1f} µs an event (median of {given.runs}), {memory} MB at most")


if __name__ == "__main__":
    main()
