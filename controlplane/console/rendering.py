"""Templates and static files: what they may use, and their addresses."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jinja2

from controlplane.console import charts, text
from proxy.policy.transforms import parse_names
from proxy.wire.log_line import one_line

_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class StaticFiles:
    version: str
    files: Mapping[str, tuple[bytes, str]]  # by name: what it holds, and its type

    def address(self, name: str) -> str:
        """It has the digest of them all, so that what is got there may be kept for ever."""
        assert name in self.files, name
        return f"/static/{self.version}/{name}"


def read_static() -> StaticFiles:
    files = {}
    digest = hashlib.sha256()
    for path in sorted((_HERE / "static").iterdir()):
        content_type = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
        files[path.name] = (path.read_bytes(), content_type or "application/octet-stream")
        digest.update(f"{path.name}\0{len(files[path.name][0])}\0".encode() + files[path.name][0])
    return StaticFiles(digest.hexdigest()[:16], files)


def environment(static: StaticFiles) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals.update(
        static=static.address,
        columns=charts.columns,
        sparkline=charts.sparkline,
        share=charts.share,
        percent=text.percent,
    )
    made.filters["number"] = text.number
    made.filters["parse_names"] = parse_names  # transforms
    made.filters["shown"] = one_line  # what somebody else says: nothing of it turns a line round
    made.filters["pairs"] = lambda texts: [(each, each) for each in texts]  # options that say what they are
    return made
