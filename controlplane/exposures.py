"""Find connections of the control plane that other hosts could read, for the log and for `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from controlplane.database_url import SCHEMES, address_of, is_exposed
from controlplane.settings import Settings, is_plain


class Exposure(NamedTuple):
    key: str
    what: str
    fix: str


def exposures(settings: Settings) -> Iterator[Exposure]:
    """Yield each connection without TLS between this control plane and another host."""
    for section, given, harm in (
        ("ControlPlane", settings.control_plane, "rules can be read"),
        ("Console", settings.console, "passwords can be read"),
    ):
        for address in given.listen:
            if not address.is_loopback and given.cert_file is None:
                what = f"other hosts can reach {address} without TLS: {harm}"
                fix = (
                    f"{section}set {section}.CertFile and KeyFile, or listen on a loopback address behind a "
                    "TLS proxy"
                )
                yield Exposure(f"{section}.Listen", what, fix)
    yield from _servers(settings)


def _servers(settings: Settings) -> Iterator[Exposure]:
    index = settings.search_index
    addresses = {"Store.Url": settings.store.url}
    if index.url != settings.store.url:
        addresses["SearchIndex.Url"] = index.url
    for key, url in addresses.items():
        if url.startswith(SCHEMES):
            if is_exposed(url):
                what = f"{address_of(url)} is on another host, and connections to it may be without TLS"
                yield Exposure(
                    key, what, "append ?sslmode=verify-full to the URL, or at least ?sslmode=require"
                )
        elif is_plain(url):
            what = f"{urlsplit(url).hostname} is on another host, and connections to it are without TLS"
            yield Exposure(key, what, "give its https:// address, with CaFile if its certificate is private")
