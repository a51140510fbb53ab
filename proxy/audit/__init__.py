"""Spool for audit records: memory-mapped files whose content survives the process."""
