"""Sinks: external destinations of audit events.

Each sink has a durable consumer that reads the store's outbox.
"""
