"""Outgoing connections: choose the egress proxy for each connection, and open the connection."""
