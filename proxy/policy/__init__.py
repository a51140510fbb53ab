"""Policy evaluation without I/O or clock: rules, canonical targets, decisions, filters, links and batches."""
