"""Sinks: external destinations of audit events. A durable consumer of the store's outbox serves each sink."""
