"""Graphward control plane: rules out, audit events in, for a fleet of proxies."""

__version__ = "0.1.0"
