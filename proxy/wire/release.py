"""The version of proxy and control plane; no other file states it."""

from typing import Final

VERSION: Final = "0.2.0"
