"""Line numbers of all tables and keys of a TOML document, because tomllib returns values without lines.

tomllib has already accepted the TOML text, so this scanner skips unneeded text and reports no errors.
"""

from __future__ import annotations

import re
import tomllib
from typing import Final

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
# Multi-line strings first, because they begin like the others. Up to two quotes may precede the closing
# three.
_STRING: Final = re.compile(
    r"""
      \"{3} (?: [^\\] | \\. )*? \"{3,5}
    | '{3} .*? '{3,5}
    | \" (?: [^\"\\\n] | \\. )* \"
    | ' [^'\n]* '
    """,
    re.DOTALL | re.VERBOSE,
)
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_BARE_VALUE: Final = re.compile(r"[^,\]}#\n]+")

Path = tuple[str, ...]


def key_lines(text: str) -> dict[Path, int]:
    """Return the first line of each table or key path of a TOML text, counted from 1.

    The tables of a TOML array are numbered from 0, as in ("Credentials", "Identities", "0", "Name").
    """
    return _Scanner(text).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}  # number of tables of each array so far

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self.lines

    def _header(self) -> Path:
        line = self._line()
        start = self.at
        while self.text[self.at] == "[":
            self.at += 1
        of_array = self.at - start > 1
        table = self._dotted_key((), line)
        while self._peek() == "]":
            self.at += 1
        return self._numbered(table, line) if of_array else table

    def _numbered(self, array: Path, line: int) -> Path:
        number = self.counts.get(array, 0)
        self.counts[array] = number + 1
        table = (*array, str(number))
        self.lines[table] = line
        return table

    def _pair(self, table: Path) -> None:
        path = self._dotted_key(table, self._line())
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _dotted_key(self, path: Path, line: int) -> Path:
        while True:
            self._skip(_SPACE)
            path = (*path, self._key_part())
            self.lines.setdefault(path, line)
            self._skip(_SPACE)
            if self._peek() != ".":
                return path
            self.at += 1

    def _key_part(self) -> str:
        if self.text[self.at] in "\"'":
            quoted = self._skip(_STRING)
            return str(tomllib.loads(f"key = {quoted}")["key"])
        return self._skip(_BARE_KEY)

    def _value(self, path: Path) -> None:
        match self.text[self.at]:
            case '"' | "'":
                self._skip(_STRING)
            case "[":
                self._items("]", path)
            case "{":
                self.lines.setdefault(path, self._line())
                self._items("}", path)
            case _:
                self._skip(_BARE_VALUE)

    def _items(self, closing: str, path: Path) -> None:
        """Scan the values of a TOML array, or the pairs of an inline table, up to the closing bracket."""
        self.at += 1
        self._skip(_BLANK)
        number = 0
        while self.text[self.at] != closing:
            if self.text[self.at] == ",":
                self.at += 1
            elif closing == "}":
                self._pair(path)
            else:
                self._value((*path, str(number)))
                number += 1
            self._skip(_BLANK)
        self.at += 1

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end()
        return match.group()

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1
