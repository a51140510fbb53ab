"""Graphward control plane: rules out, audit events in, for a fleet of proxies."""
