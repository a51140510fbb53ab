"""Sinks: the places outside to which audit events are delivered, each by a durable consumer of the outbox."""
