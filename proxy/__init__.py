"""Graphward proxy: evaluates every request between an application and a graph API."""

from proxy.wire.release import VERSION

__version__ = VERSION
