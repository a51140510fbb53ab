"""Schemas of graph APIs, as the control plane reads and stores them."""
