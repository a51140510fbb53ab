"""An archive of audit events in object storage, which the chain of events vouches for."""
