"""Error of a failed outgoing attempt, with a text for the log, the health report and the heartbeat."""

import traceback
from pathlib import Path
from typing import Final

from proxy.policy.redaction import shortened

_LONGEST: Final = 2000  # characters; the text has to fit into a message to a worker


class AttemptFailed(Exception):
    """Error because an attempt to call another service failed; the error's text gives the reason.

    The error's text never contains a secret, a token or the body of a response.
    """

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        # A name in the text may contain a lone surrogate, which can't be sent.
        super().__init__(shortened(text, _LONGEST).encode("utf-8", "backslashreplace").decode())
        self.retry_after = retry_after  # seconds that the other side asked to wait


def unforeseen(error: Exception) -> str:
    """Describe an unexpected exception by its type and its place in the code.

    The text of the exception is left out, because it may quote any value.
    """
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"unexpected {type(error).__name__} at {Path(place.filename).name} line {place.lineno}"
