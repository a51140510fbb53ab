"""Signed audit report: the facts that audit events establish about classes of resources."""
