"""Graphward proxy: evaluates every request between an application and a graph API."""

__version__ = "0.1.0"
