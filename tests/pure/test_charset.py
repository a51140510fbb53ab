"""Tests that a body is read as UTF-8 unless its Content-Type names another charset."""

from __future__ import annotations

import pytest

from proxy.server.content.charset import is_utf8

ASCII = b'{"a":"b"}'
OTHER = '{"a":"ö"}'.encode()


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        'application/json;odata.metadata=minimal;charset="UTF-8"',
        "text/plain; Charset=us-ascii",
    ],
)
def test_utf8_is_read(content_type: str) -> None:
    assert is_utf8(content_type, ASCII)
    assert is_utf8(content_type, OTHER)


@pytest.mark.parametrize("charset", ["iso-8859-1", "windows-1252"])
def test_ascii_means_itself_in_its_supersets(charset: str) -> None:
    assert is_utf8(f"application/json; charset={charset}", ASCII)
    assert not is_utf8(f"application/json; charset={charset}", OTHER)


@pytest.mark.parametrize(
    "parameters",
    [
        "charset=utf-7",
        "charset=utf-16",
        "charset=hz-gb-2312",
        "charset=",
        "charset=utf-8; charset=utf-7",
        "charset*=utf-8''utf-7",
        'charset="utf\\-7"',
        'charset="utf-8',
        "x=1, text/plain; charset=utf-7",
    ],
)
def test_anything_else_is_not(parameters: str) -> None:
    assert not is_utf8(f"application/json; {parameters}", ASCII)
