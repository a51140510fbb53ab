"""An archive of audit events in object storage. The audit chain proves the archived events."""
