"""URL of a PostgreSQL database: check of the URL, and the parts of the URL that messages may show.

The parts of a database URL are read only if the whole URL is well-formed. No message can therefore show a
part of a password as the host or the database name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote

SCHEMES: Final = ("postgresql://", "postgres://")
FORM: Final = "postgresql://user:password@host/database"
# Remedy if the driver has no certificate authority with which to check the server's certificate
NAME_AUTHORITY: Final = (
    "give the certificate of the database's authority in {}: &sslrootcert=FILE"
    " (for public ones /etc/ssl/certs/ca-certificates.crt)"
)
_ESCAPED: Final = r"%(?!00)[0-9A-Fa-f]{2}"
_NAME: Final = rf"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_ESCAPED})"
_HOST: Final = rf"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~-]|{_ESCAPED})*)(?::[0-9]{{1,5}})?"
_VALUE: Final = rf"(?:[A-Za-z0-9._~!$'()*+,;:/-]|{_ESCAPED})*"
_URL: Final = re.compile(
    rf"postgres(?:ql)?://(?:{_NAME}*(?::(?P<password>(?:{_NAME}|:)*))?@)?(?P<hosts>{_HOST}(?:,{_HOST})*)"
    rf"(?:/(?P<database>{_NAME}*))?(?:\?(?P<parameters>[a-z_]+={_VALUE}(?:&[a-z_]+={_VALUE})*))?"
)
_TLS_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_WITH_TLS: Final = ("require", "verify-ca", "verify-full")


def valid_database_url(text: str) -> str:
    """Check that a database URL is well-formed, and return the URL unchanged.

    Raise ValueError if the URL is not well-formed. The text of the ValueError contains no part of the
    database URL.
    """
    if not text.startswith(SCHEMES):
        raise ValueError("the URL must begin with postgresql://")
    parts = _parts(text)
    if not parts["database"]:
        raise ValueError(f"the URL must name a database: {FORM}")
    if _parameters(parts).get("sslmode", "prefer") not in _TLS_MODES:
        raise ValueError(f"sslmode in the URL must be one of {', '.join(_TLS_MODES)}")
    return text


def address_of(url: str) -> str:
    """Return the address of the PostgreSQL database, without user and password."""
    parts = _parts(url)
    hosts = ",".join(_hosts(parts))
    port = _parameters(parts).get("port")
    return f"postgresql://{hosts}{f':{port}' if port else ''}/{parts['database']}"


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield secret texts: the database URL, and the URL's password in encoded and decoded form."""
    parts = _parts(url)
    yield url
    for password in (parts["password"], _parameters(parts).get("password")):
        if password:
            yield password
            yield unquote(password)


def is_authority_unknown(reason: str) -> bool:
    """Return True if this host lacks the authority that signed the database server's TLS certificate."""
    return "root certificate file" in reason or "certificate verify failed" in reason


def has_password(url: str) -> bool:
    return len(list(secrets_of_url(url))) > 1


def is_exposed(url: str) -> bool:
    """Return True if the database is on another host and its connections may be unencrypted (without TLS)."""
    parts = _parts(url)
    if _parameters(parts).get("sslmode") in _WITH_TLS:
        return False
    return not all(_is_local(host) for host in _hosts(parts))


def _parts(url: str) -> dict[str, str]:
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(
            f"the URL must be {FORM}: percent-encode special characters of user and password"
            " (@ is %40, / is %2F, % is %25)"
        )
    return found.groupdict(default="")


def _parameters(parts: dict[str, str]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in parts["parameters"].split("&") if each)


def _hosts(parts: dict[str, str]) -> list[str]:
    parameters = _parameters(parts)
    given = parts["hosts"] or unquote(parameters.get("host") or parameters.get("hostaddr", ""))
    return given.split(",")


def _is_local(host: str) -> bool:
    """Return True if the database runs on this machine: a socket directory, or a local address."""
    name = unquote(host)
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif not name.startswith("/"):
        name = name.partition(":")[0]
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name in ("", "localhost") or name.startswith(("/", "@"))
