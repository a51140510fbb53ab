"""Templates and static files of the console: names defined in all templates, and URLs of static files."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import jinja2

from controlplane import __version__
from controlplane.console import charts
from controlplane.console.action_words import words_of
from controlplane.console.text import as_sentence, segments
from controlplane.programs import program_of, proxy_beside
from proxy.policy.transforms import parse_names
from proxy.wire.figures import counted, number, percent
from proxy.wire.log_line import one_line

_HERE: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    gzipped: bytes
    content_type: str


@dataclass(frozen=True, slots=True)
class StaticFiles:
    version: str
    files: Mapping[str, StaticFile]  # files by name

    def address(self, name: str) -> str:
        """Return the URL of a static file.

        The URL contains a digest of all static files, so that browsers can cache the file without a time
        limit.
        """
        assert name in self.files, name
        return f"/static/{self.version}/{name}"


@cache
def read_static() -> StaticFiles:
    """Read the static files once in each process."""
    files = {}
    digest = hashlib.sha256()
    for path in sorted((_HERE / "static").iterdir()):
        content_type = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0]
        body = path.read_bytes()
        gzipped = gzip.compress(body, mtime=0)
        files[path.name] = StaticFile(body, gzipped, content_type or "application/octet-stream")
        digest.update(f"{path.name}\0{len(body)}\0".encode() + body)
    return StaticFiles(digest.hexdigest()[:16], files)


@cache
def environment() -> jinja2.Environment:
    """Make the template environment once in each process, because it compiles each template at first use."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    program = program_of(sys.argv[0])
    made.globals.update(
        program_version=__version__,
        command=f"{program} --config controlplane.toml",
        program=program,
        proxy_doctor=f"{proxy_beside(program)} --config proxy.toml --doctor",
        static=read_static().address,
        columns=charts.columns,
        sparkline=charts.sparkline,
        share=charts.share,
        percent=percent,
        counted=counted,
    )
    made.filters["number"] = number
    made.filters["counted"] = counted  # a number with its noun
    made.filters["parse_names"] = parse_names  # names of transforms
    made.filters["action_words"] = words_of
    made.filters["sentence"] = as_sentence
    made.filters["capitalised"] = lambda text: text[:1].upper() + text[1:]
    # Text from outside, without characters that change the direction of a line
    made.filters["shown"] = one_line
    made.filters["segments"] = segments  # a path that breaks at its slashes
    # Options whose value is also their text
    made.filters["pairs"] = lambda texts: [(each, each) for each in texts]
    return made
