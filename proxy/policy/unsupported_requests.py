"""Requests that stand for another request, which no rule has evaluated: the proxy refuses them."""

from __future__ import annotations

from typing import Final

from proxy.policy.canonical import Target

_METHOD_OVERRIDES: Final = frozenset((b"x-http-method", b"x-http-method-override", b"x-method-override"))


def names_method_override(field: bytes) -> bool:
    """Return whether a service may read the request's method from a header field of this name.

    If a service stores fields as environment variables, it treats an underscore like a hyphen (RFC 3875
    §4.1.18).
    """
    return field.lower().replace(b"_", b"-") in _METHOD_OVERRIDES


def carries_query(method: str, target: Target) -> bool:
    """Return whether the request is a POST to `…/$query`.

    Such a request is a GET with query options in its body (OData 4.01, Passing Query Options in the Request
    Body). Graph provides `$batch` for long URLs instead.
    """
    return method == "POST" and target.may_end_in("$query")
