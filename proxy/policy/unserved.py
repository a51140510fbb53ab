"""Requests that mean another one, which no rule has judged: they are refused, whoever asks."""

from __future__ import annotations

from proxy.policy.canonical import Target


def carries_query(method: str, target: Target) -> bool:
    """Whether it is a POST to `…/$query`: a GET by the query options in its body (OData 4.01, Passing Query
    Options in the Request Body). Graph has long URLs within `$batch` for that."""
    return method == "POST" and target.may_end_in("$query")
