"""Graphward control plane: rules out, audit events in, for a fleet of proxies."""

from proxy.wire.release import VERSION

__version__ = VERSION
