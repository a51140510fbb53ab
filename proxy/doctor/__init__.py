"""Checks of `--doctor` for faults that keep a proxy from working, run on the proxy's host.

The checks of `--doctor` change nothing, and can run while the proxy runs.
"""
