"""Connections that lead out: which egress proxy each one takes, and how it is opened."""
