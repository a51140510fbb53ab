"""The system of record."""
