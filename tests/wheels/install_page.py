"""The command blocks of docs/how-to/install.md, each with the comment that precedes the block."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "install.md"
_BLOCK: Final = re.compile(
    r"(?:^<!-- (?P<comment>[^\n]*) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    kind: str  # text after the fence
    comment: str  # `tested`, `not run: reason`, or nothing
    text: str

    @property
    def is_run(self) -> bool:
        return self.comment == "tested"


def blocks() -> list[Block]:
    text = PAGE.read_text("utf-8")
    return [
        Block(
            text.count("\n", 0, found.start("kind")) + 1,
            found["kind"],
            found["comment"] or "",
            found["text"],
        )
        for found in _BLOCK.finditer(text)
    ]
