"""Detection of requests that a service may treat as a different request, which no rule has evaluated.

The proxy refuses requests that a service may treat as a different request.
"""

from __future__ import annotations

from typing import Final

from proxy.policy.canonical import Target

_METHOD_OVERRIDES: Final = frozenset((b"x-http-method", b"x-http-method-override", b"x-method-override"))


def names_method_override(field: bytes) -> bool:
    """Return whether some services read the request's method from a header field with this name.

    Some services store header fields as environment variables, so they treat `_` in a field name like `-`
    (RFC 3875 §4.1.18).
    """
    return field.lower().replace(b"_", b"-") in _METHOD_OVERRIDES


def carries_query(method: str, target: Target) -> bool:
    """Return whether the request is a POST to `…/$query`.

    A POST to `…/$query` is a GET with query options in its body (OData 4.01, Passing Query Options in the
    Request Body). For long URLs, Microsoft Graph offers `$batch` instead of `$query`.
    """
    return method == "POST" and target.may_end_in("$query")
