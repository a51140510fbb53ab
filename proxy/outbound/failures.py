"""What is told of an attempt that brought nothing, in log, health and heartbeat."""

import traceback
from pathlib import Path
from typing import Final

from proxy.policy.redaction import shortened

_LONGEST: Final = 2000  # characters: it has to fit into a message to a worker


class AttemptFailed(Exception):
    """What was asked for didn't come. The text never has a secret, a token or a response's body in it."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        # A name in it may be another's, with half a character, which can't be sent.
        super().__init__(shortened(text, _LONGEST).encode("utf-8", "backslashreplace").decode())
        self.retry_after = retry_after  # seconds that whoever was asked wants to be left alone


def unforeseen(error: Exception) -> str:
    """Its type and its place, for whoever mends it; its own text may quote anything."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"unforeseen {type(error).__name__} at {Path(place.filename).name} line {place.lineno}"
