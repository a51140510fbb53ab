"""Schemas of graph APIs, in the forms that the control plane reads and stores."""
