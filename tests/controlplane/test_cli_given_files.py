"""Tests of files named on the command line: a byte order mark is skipped, and UTF-16 is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.cli.failure import CommandFailed
from controlplane.cli.operator import _password
from controlplane.cli.remote import _token
from controlplane.cli.ruleset import read_text
from controlplane.secrets import read_master_key


def test_a_byte_order_mark_is_no_part_of_what_a_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_bytes(b"\xef\xbb\xbfa-right-long-password\r\n")
    assert _password(file) == "a-right-long-password"
    assert _token(file) == "a-right-long-password"
    assert read_text(file) == "a-right-long-password\n"
    file.write_bytes(b"\xef\xbb\xbf" + b"0a" * 32 + b"\r\n")
    assert read_master_key("", file) == b"\x0a" * 32


@pytest.mark.parametrize("read", [_password, _token, read_text])
def test_utf16_is_refused_by_name(tmp_path: Path, read: object) -> None:
    file = tmp_path / "given"
    file.write_bytes("a right long password\n".encode("utf-16"))
    assert callable(read)
    with pytest.raises(CommandFailed, match="the text is UTF-16: save it as UTF-8"):
        read(file)
