"""The spool: audit records in memory that outlives the process."""
