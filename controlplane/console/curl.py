"""Pure functions that write a curl command to send a stored request through the proxy again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from controlplane.console.event_rows import full_path, text_of
from proxy.policy.redaction import is_cut

_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F))
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


def curl_of(event: Mapping[str, Any]) -> str | None:
    """Return a POSIX shell command that sends an event's request with curl to $PROXY with $TOKEN.

    Return None if the request target of the event is incomplete.

    Neither curl nor the shell may interpret the request target. The command disables curl's globbing and
    curl's removal of dot segments. The shell receives the target within single quotes. The command contains
    no control characters that a terminal would interpret.
    """
    method, target = text_of(event, "method"), full_path(event)
    if not method or not target.startswith("/") or is_cut(target):
        return None
    how = "--head" if method == "HEAD" else f"--request {shlex.quote(quote(method, safe=_PRINTABLE))}"
    body = " --data @body.json --header 'Content-Type: application/json'" if method in _WITH_BODY else ""
    return (
        f'curl --globoff --path-as-is {how}{body} --header "Authorization: Bearer $TOKEN"'
        f' --url "$PROXY"{shlex.quote(quote(target, safe=_PRINTABLE))}'
    )
