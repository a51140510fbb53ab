"""Checks for faults that keep a proxy from working, run on its host.

They change nothing, and can run next to the proxy.
"""
