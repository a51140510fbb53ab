"""The admin API: every operation over HTTP, and who may ask for it."""
