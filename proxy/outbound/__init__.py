"""Outgoing connections: the choice of the egress proxy for each connection, and how it is opened."""
