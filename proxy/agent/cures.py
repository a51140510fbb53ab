"""Remedies for a failed call to a host in the settings. Log lines and the doctor use the same remedies."""

import socket
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from proxy.outbound.call import CallFailed
from proxy.outbound.session import EgressError
from proxy.outbound.tunnel import remedy

DOCTOR: Final = "for details, run the same command with --doctor"
OF_IDENTITY_FILE: Final = "Agent.IdentityPath must be on a disk with room, in a directory of the proxy's user"
_EXPIRED, _NOT_YET, _OTHER_NAME = 10, 9, (62, 64)  # codes X509_V_ERR_… of OpenSSL
OF_KEYS: Final = ("unknownApiKey", "invalidSignature")  # error codes for refused keys
_OF_REFUSALS: Final = {
    "unknownApiKey": "put the API key of `proxy add` into Agent.ApiKey; if the proxy was disabled: "
    "`proxy enable NAME`; if the key is lost: `proxy rotate-secret NAME`; if the proxy was deleted: "
    "`proxy add` makes a new one, and events that the old one did not deliver are lost",
    "invalidSignature": "put the HMAC secret that belongs to the API key into Agent.HmacSecret; if it is "
    "lost: `proxy rotate-secret NAME`",
    "timestampOutOfRange": "set this machine's clock (NTP), or the control plane's",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A host in the settings: the address, and the names of settings to mention in a remedy."""

    hostname: str
    port: int
    key: str  # name of the setting with the address
    ca_key: str


def place_of(url: str, key: str, ca_key: str) -> Place:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Place(parts.hostname or "", port, key, ca_key)


def of_refusal(code: str, identity_file: str = "") -> str:
    """Return the remedy for an error code of the control plane; empty if the code has no remedy.

    `identity_file` is the file with the API keys of a proxy that enrolled itself.
    """
    if identity_file and code in OF_KEYS:
        return (
            f"the keys in {identity_file} are revoked, or the proxy was disabled or deleted: enable it. Or "
            "another machine with a copy of that file has newer keys, or that file or the control plane was "
            "restored from a backup: delete that file and start the proxy again, so that it enrols with its "
            "token as another proxy"
        )
    return _OF_REFUSALS.get(code, "")


def of_name(place: Place) -> str:
    """Return the remedy for a host name that does not resolve."""
    return (
        f"correct {place.key}, or make this machine's resolver (/etc/resolv.conf) resolve the name, or set "
        "Egress.ProxyUrl if other networks are reached only through an HTTP proxy"
    )


def of_refused_connection(place: Place) -> str:
    return f"start the program that should listen there, or correct the port in {place.key}"


def of_silence(place: Place) -> str:
    return (
        f"let this machine reach port {place.port} there (firewall, route), or set Egress.ProxyUrl if only "
        "an HTTP proxy reaches other networks"
    )


def of_handshake(place: Place) -> str:
    return f"enable TLS there, or write http:// in {place.key} if that is intended"


def of_certificate(place: Place, error: ssl.SSLCertVerificationError, names: str = "") -> str:
    """Return the remedy for a refused server certificate.

    `names` are the names in the certificate, if known.
    """
    if error.verify_code in (_EXPIRED, _NOT_YET):
        return f"renew the certificate of {place.hostname}; if it is valid, correct this machine's clock"
    if is_another_name(error):
        fix = f"correct its port, or write a name that is in the certificate into {place.key}"
        return fix + (f": {names}" if names else "")
    return f"name the authority that issued it in {place.ca_key} (PEM), or fix the chain that it sends"


def is_another_name(error: ssl.SSLCertVerificationError) -> bool:
    """Return True if the certificate is valid, but not for this host name."""
    return error.verify_code in _OTHER_NAME


def of_failure(place: Place, error: BaseException) -> str:
    """Return the remedy for the exception that ended a call; empty if the failure has no frequent cause."""
    if isinstance(error, EgressError):
        return remedy(error.problem, error.proxy, place.hostname, place.port)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    match error:
        case ssl.SSLCertVerificationError():
            return of_certificate(place, error)
        case ssl.SSLError():
            return of_handshake(place)
        case socket.gaierror():
            return of_name(place)
        case ConnectionRefusedError():
            return of_refused_connection(place)
        case TimeoutError():
            return of_silence(place)
    return ""


def of_control_plane(url: str, error: CallFailed) -> str:
    """Return the remedy for a call to the control plane that got no response; empty if none is known."""
    if error.cause is None:
        return ""
    return of_failure(place_of(url, "RuleSync.SaasBaseUrl", "Agent.CaFile"), error.cause)


def joined(text: str, cure: str) -> str:
    """Return one log line with a failure and, if known, the remedy."""
    return f"{text}; {cure}" if cure else text
