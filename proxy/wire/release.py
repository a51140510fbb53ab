"""The version of both programs: the only place that states it."""

from typing import Final

VERSION: Final = "0.2.0"
