"""Requests that mean another one, which no rule has evaluated: they are refused, whoever asks."""

from __future__ import annotations

from typing import Final

from proxy.policy.canonical import Target

_METHOD_OVERRIDES: Final = frozenset((b"x-http-method", b"x-http-method-override", b"x-method-override"))


def names_method_override(field: bytes) -> bool:
    """Whether a service may take the request's method from the field of this name. Where fields become
    variables of an environment, an underscore is as good as a hyphen (RFC 3875 §4.1.18)."""
    return field.lower().replace(b"_", b"-") in _METHOD_OVERRIDES


def carries_query(method: str, target: Target) -> bool:
    """Whether it is a POST to `…/$query`: a GET by the query options in its body (OData 4.01, Passing Query
    Options in the Request Body). Graph has long URLs within `$batch` for that."""
    return method == "POST" and target.may_end_in("$query")
