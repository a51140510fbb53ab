"""Detection of settings values that can't work, because they were copied from an example and not replaced."""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

_THINGS: Final = (
    "api|app|application|authority|client|company|directory|domain|host|id|idp|issuer|key-?vault|name|"
    "organi[sz]ation|org|provider|realm|secret|server|subdomain|tenant|vault"
)
_PLACEHOLDER: Final = re.compile(
    r"<[^<>]*>|\$?\{[^{}]*\}|\$\([^()]*\)|…"
    r"|(?<![A-Za-z0-9])YOUR[-_ ][A-Z0-9_-]+"
    rf"|(?<![A-Za-z0-9])[Yy]our[-_ ](?:{_THINGS})(?![a-z])[a-z_-]*"
    r"|\b([0-9A-Fa-fXx])\1{7}-\1{4}-\1{4}-\1{4}-\1{12}\b"
    r"|\b12345678-1234-1234-1234-12345678(?:9012|9abc|9ABC)\b"
    r"|^(?:change-?me|replace-?me|to-?do|tbd|placeholder|\.\.\.|x{3,})$",
    re.ASCII,
)
_EXAMPLE_HOST: Final = re.compile(r"(?:^|\.)example\.(?:com|net|org)$")  # reserved by RFC 2606 section 3
_ENTRA: Final = re.compile(r"login\.(?:microsoftonline\.(?:com|us|de)|partner\.microsoftonline\.cn)$")
_OF_MANY: Final = ("common", "organizations", "consumers")


def placeholder_problems(
    name: str, value: str, instead: str, *, secret: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield pairs of setting name and problem for the loader, if `value` is still a placeholder.

    `instead` describes the value that the operator must write in place of the placeholder. A real secret may
    contain any text, even text that looks like a placeholder. A secret is therefore reported only if its
    whole value is a placeholder, and no message contains a part of the secret.
    """
    found = _PLACEHOLDER.fullmatch(value) if secret else _PLACEHOLDER.search(value)
    if found is not None:
        what = "the value" if secret else repr(found[0])
        yield name, f"{what} is a placeholder: write {instead}"
    elif not secret and (host := _host(value)) and _EXAMPLE_HOST.search(host):
        yield name, f"{host} is a host for examples, which does not exist: write {instead}"


def is_entra(url: str) -> bool:
    """Return True if the URL belongs to Microsoft Entra."""
    return _ENTRA.fullmatch(_host(url)) is not None


def shared_authority(url: str) -> str | None:
    """Return the first path segment of an Entra URL if the segment stands for many tenants, or None."""
    if not is_entra(url):
        return None
    first = urlsplit(url).path.strip("/").partition("/")[0].lower()
    return first if first in _OF_MANY else None


def is_shared_tenant(authority_url: str, tenant_id: str) -> bool:
    """Return True if `tenant_id` stands for many Entra tenants.

    An empty `authority_url` means Microsoft Entra.
    """
    return (not authority_url or is_entra(authority_url)) and tenant_id.lower() in _OF_MANY


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
