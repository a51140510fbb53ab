"""Settings for each database session with PostgreSQL, so that both ends soon detect a lost connection."""

from __future__ import annotations

from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_DEFAULTS: Final = {
    "client_encoding": "utf8",
    "target_session_attrs": "read-write",
    "application_name": "graphward",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
}
# The same settings at the server, which otherwise keeps the sessions of a vanished host for hours.
_AT_THE_SERVER: Final = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "30000",
}


def conninfo(url: str) -> str:
    given = conninfo_to_dict(url)
    return make_conninfo(url, **{name: value for name, value in _DEFAULTS.items() if name not in given})


def setting_up(**further: str) -> bytes:
    """Return the SQL statement that sets the given session settings, and the settings of every session."""
    settings = (
        f"set_config('{name}', '{value}', false)" for name, value in (_AT_THE_SERVER | further).items()
    )
    return f"SELECT {', '.join(settings)}".encode()
