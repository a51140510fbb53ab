"""Pure policy: rules, canonical targets, decisions, filters, links and batches. No I/O and no clock."""
