"""Sinks: external destinations of audit events, each served by a durable consumer of the outbox."""
