"""Typed settings from TOML and the environment, without I/O.

Every problem is reported at once, with its place.
"""

from proxy.config.declare import setting, tables
from proxy.config.describe import describe, reference
from proxy.config.load import SettingsError, load_settings
from proxy.config.values import Address

__all__ = ["Address", "SettingsError", "describe", "load_settings", "reference", "setting", "tables"]
