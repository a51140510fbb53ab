"""Spool of audit records, in memory-mapped files that outlive the process."""
