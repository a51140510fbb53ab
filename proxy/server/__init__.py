"""Data path: the code in a worker process that handles the requests of applications."""
