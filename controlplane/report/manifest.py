"""Signed manifest of an export of audit events: filter, time and digest of the export, and chain heads."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import msgspec

from controlplane.report.signed import NotVerified, check, claimed, decode, split

KIND: Final = "graphward export manifest"
_MOST_FILTER: Final = 1000  # characters of a header field; reverse proxies limit all fields to about 4 KiB


class HeadOfOrg(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Head of an organisation's audit chain at the time when the export began."""

    org_id: str
    org: str
    number: int
    link: str


class Manifest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Signed payload of a manifest file, which describes an export of audit events."""

    kind: str
    key: str
    filter: str
    org: str | None  # name or id in the request; null for every visible organisation
    from_: str | None = msgspec.field(name="from")
    to: str
    format: str
    exported_at: str
    exported_by: str
    release: str
    events: int
    bytes: int
    sha256: str
    heads: tuple[HeadOfOrg, ...]
    oldest: str | None  # time of the oldest stored event
    notes: tuple[str, ...]  # events that are stored, were purged or never arrived; names without events


def header_fields(
    filter_: str, from_: str | None, to: str | None, exported_at: str, heads: Sequence[HeadOfOrg]
) -> dict[str, str]:
    """Return the HTTP header fields that describe an export of audit events.

    If the export's filter is too long for a header field, the header field contains the filter's digest.
    """
    text = quote(filter_, safe=" :/*-_.()<>=\"'$@,|+")
    if len(text) > _MOST_FILTER:
        text = f"sha256={sha256(filter_.encode()).hexdigest()}"
    given = {
        "Graphward-Filter": text,
        "Graphward-From": from_,
        "Graphward-To": to,
        "Graphward-Exported-At": exported_at,
        "Graphward-Chain-Head": ", ".join(
            f"{each.org_id};number={each.number};link={each.link}" for each in heads
        ),
    }
    return {name: value for name, value in given.items() if value}


def apart(file: bytes) -> tuple[bytes, bytes] | None:
    """Split a file into an export and the manifest at the end of the file.

    Return None if the file does not end with a manifest.
    """
    start = file.rfind(b"\n", 0, len(file) - 1) + 1
    try:
        ends_so = start > 0 and is_manifest(file[start:])
    except NotVerified:
        ends_so = False
    return (file[:start], file[start:]) if ends_so else None


def is_manifest(file: bytes) -> bool:
    """Return True if the file claims (unverified) to be a manifest.

    Raise NotVerified if the file begins like JSON but is not one signed line.
    """
    return file.startswith(b"{") and claimed(split(file)[0]).kind == KIND


def verify_manifest(file: bytes, key: str, exported: bytes | None) -> Manifest:
    """Return the manifest in a file if the key signed this manifest.

    Raise NotVerified if the key did not sign the manifest, or if the exported file does not match the
    manifest.
    """
    payload, signature = split(file)
    check(payload, signature, key)
    manifest: Manifest = decode(payload, Manifest)
    if exported is not None:
        found = sha256(exported).hexdigest()
        if found != manifest.sha256:
            size = ""
            if len(exported) != manifest.bytes:
                size = f"the data has {len(exported):,} bytes instead of {manifest.bytes:,}; "
            raise NotVerified(
                f"the exported data differs from its signed manifest: {size}the data's SHA-256 is {found}"
            )
    return manifest
