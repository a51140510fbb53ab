"""The admin API: every operation over HTTP, and the authentication of its callers."""
