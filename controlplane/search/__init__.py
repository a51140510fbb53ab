"""The search index over audit events."""
