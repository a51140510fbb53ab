"""Graphward's control plane, which sends rules to a fleet of proxies and receives their audit events."""

from proxy.wire.release import VERSION

__version__ = VERSION
