"""Longest time that a test waits for an expected event."""

from __future__ import annotations

from typing import Final

# A busy machine may run nothing of a test for many seconds. A test that passes never waits this long, and a
# test that fails still ends before pytest's own limit for a test.
PATIENCE_SECONDS: Final = 120.0
