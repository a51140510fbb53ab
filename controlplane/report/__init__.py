"""The auditor's answer: what audit events establish about classes of resources, signed."""
