"""Longest time that a test waits for an expected event."""

from __future__ import annotations

from typing import Final

# A busy machine may run nothing of a test for many seconds. A test that passes never waits this long. Pytest
# has a longer limit for a whole test, so that a failure names the wait that took too long.
PATIENCE_SECONDS: Final = 120.0
