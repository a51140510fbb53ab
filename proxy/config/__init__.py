"""Typed settings from a TOML text and environment variables, without I/O.

The loader reports all problems of the settings at once, with their places.
"""

from proxy.config.declare import setting, tables
from proxy.config.describe import describe, reference
from proxy.config.load import SettingsError, load_settings
from proxy.config.values import Address

__all__ = ["Address", "SettingsError", "describe", "load_settings", "reference", "setting", "tables"]
