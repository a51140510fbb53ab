"""Write docs/demo.svg, the picture of the demo for the README: .venv/bin/python -m tests.demo_picture."""

from __future__ import annotations

import asyncio
import io
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.demo import Screen, demo_system
from tests.demo_console import start_pages
from tests.demo_day import Yesterday
from tests.demo_requests import Demo
from tests.fakes.system import ROOT

PICTURE: Final = ROOT / "docs" / "demo.svg"
COLUMNS: Final = 120
_SHOWN: Final = ("Filtered", "Disguised")  # first words of the headings


async def main() -> None:
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    screen, day = Screen(console), Yesterday()
    with tempfile.TemporaryDirectory() as folder:
        async with demo_system(Path(folder), day) as system:
            demo = Demo(system)
            await demo.send_all()
            await demo.collect_events()
            demo.close()
            screen.welcome(system, day.sign_in, start_pages(demo.results))
            screen.summary(demo, day.verdicts)
            screen.requests([each for each in demo.results if each.heading.startswith(_SHOWN)])
    console.save_svg(str(PICTURE), title="./dev demo")


if __name__ == "__main__":
    asyncio.run(main())
