"""Tests that log lines are written completely and in order.

If the pipe has no room for a log line, the proxy drops and counts the line, and does not wait.
"""

from __future__ import annotations

import logging

import pytest

from proxy.wire.log_handler import LineHandler


class Pipe:
    """A fake pipe that has room for a given number of bytes, and counts the waits for room."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.text = b""
        self.waited = 0.0
        self.waits_in_vain = 0
        self.error: OSError | None = None

    def ready(self, seconds: float) -> bool:
        if not self.room:
            self.waited += seconds
            self.waits_in_vain += bool(seconds)
        return bool(self.room)

    def write(self, data: bytes) -> int:
        if self.error is not None:
            raise self.error
        taken = data[: self.room]
        self.room -= len(taken)
        self.text += taken
        return len(taken)

    def close(self) -> None:
        self.room = 0


def handler_of(pipe: Pipe) -> LineHandler:
    handler = LineHandler(pipe)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    return handler


def say(handler: LineHandler, *lines: str) -> None:
    for line in lines:
        handler.handle(logging.LogRecord("test", logging.INFO, "", 0, "%s", (line,), None))


def test_lines_reach_the_outlet_in_order() -> None:
    pipe = Pipe(room=1000)
    say(handler_of(pipe), "one", "two", "größer", "half a character \ud800")
    assert pipe.text == "INFO one\nINFO two\nINFO größer\nINFO half a character \\ud800\n".encode()


def test_a_line_that_was_begun_is_ended_and_those_after_it_are_counted() -> None:
    pipe = Pipe(room=12)
    handler = handler_of(pipe)
    say(handler, "one", "two", "three", "four")
    assert pipe.text == b"INFO one\nINF"
    pipe.room = 1000
    say(handler, "five", "six")
    report = b"WARNING dropped 2 lines before this one: the log was not read in time\n"
    assert pipe.text == b"INFO one\nINFO two\n" + report + b"INFO five\nINFO six\n"


def test_what_was_begun_is_ended_at_the_end() -> None:
    pipe = Pipe(room=4)
    handler = handler_of(pipe)
    say(handler, "one")
    pipe.room = 1000
    handler.flush()
    assert pipe.text == b"INFO one\n"


def test_a_reader_that_stands_still_is_waited_for_once() -> None:
    pipe = Pipe(room=12)
    handler = handler_of(pipe)
    say(handler, *("line",) * 100)
    assert (pipe.waits_in_vain, pipe.waited <= 0.5) == (1, True)
    pipe.room = 1000
    say(handler, "read again")
    pipe.room = 0
    say(handler, "once more", "and more")
    assert pipe.waits_in_vain == 2


@pytest.mark.parametrize(
    ("error", "then"),
    [
        # another process filled it in between: the line is only late
        (BlockingIOError(), b"INFO one\nINFO two\n"),
        (BrokenPipeError(), b"INFO two\n"),  # the reader has closed
        (OSError(28, "No space left on device"), b"INFO two\n"),
    ],
)
def test_an_outlet_that_fails_disturbs_nobody(error: OSError, then: bytes) -> None:
    pipe = Pipe(room=1000)
    handler = handler_of(pipe)
    pipe.error = error
    say(handler, "one")
    pipe.error = None
    say(handler, "two")
    assert pipe.text == then
