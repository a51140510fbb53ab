"""An archive of audit events in object storage.

The audit chain shows if an archived event was changed, left out or inserted.
"""
