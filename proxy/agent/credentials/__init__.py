"""Providers of upstream access tokens."""
