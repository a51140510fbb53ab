"""Spool of audit records, in memory that outlives the process."""
