"""An archive of audit events in object storage, which the hash chain of the events proves."""
