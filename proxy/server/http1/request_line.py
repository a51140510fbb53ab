"""Parse a request line that is not in origin form: convert the absolute form, or describe the fault.

The parser in `request_line` runs only if the pattern in `request_head` does not match the request line. The
module `request_line` does no input or output.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from proxy.server.errors import MalformedHead

HOST_AND_PORT: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")

_ABSOLUTE: Final = re.compile(
    # the authority has no '/', '?' or '#'
    rb"([A-Z-]+) ([Hh][Tt][Tt][Pp][Ss]?)://([!\"$-.0->@-~]*)([!-~]*) HTTP/1\.([01])"
)
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2
_VERSION: Final = re.compile(rb"HTTP/[0-9](?:\.[0-9])?")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_BEYOND_ASCII: Final = re.compile(rb"[\x80-\xff]")
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://")
_DEFAULT_PORT: Final = {b"http": b"80", b"https": b"443"}
_LONGEST_NAMED: Final = 32  # bytes of the application's text that a message repeats


class AbsoluteForm(NamedTuple):
    """A request line in absolute form (RFC 9112 §3.2.2).

    `line` is the request line after its conversion to origin form.
    """

    line: bytes
    scheme: bytes
    authority: bytes

    def is_same_host(self, host: bytes) -> bool:
        """Return True if the target and a Host field have the same host and port, in any spelling."""
        return _host_and_port(self.scheme, self.authority) == _host_and_port(self.scheme, host)


def absolute_form(line: bytes) -> AbsoluteForm:
    """Parse a request line that is not in origin form. The line end is already removed from the request line.

    Raise MalformedHead unless the request line has an absolute http or https URL and a supported version.
    """
    found = _ABSOLUTE.fullmatch(line)
    if found is None:
        raise _fault(line)
    method, scheme, authority, rest, minor = found.groups()
    if b"@" in authority:
        raise _bad_target("the target contains user information; send credentials in the Authorization field")
    if not HOST_AND_PORT.fullmatch(authority):
        raise _bad_target("the authority in the request target is not a valid host and port")
    if not rest and method == b"OPTIONS":
        raise _bad_target(_ASTERISK)  # RFC 9112 §3.2.4: its origin form is '*'
    path = rest if rest.startswith(b"/") else b"/" + rest
    return AbsoluteForm(b"%b %b HTTP/1.%b" % (method, path, minor), scheme.lower(), authority)


def method_not_allowed(method: bytes) -> MalformedHead:
    """Return the error for a request with the method CONNECT or TRACE, which the proxy does not support.

    TRACE would send the upstream credential to the application.
    """
    return MalformedHead(f"the proxy does not support {method.decode()}", "methodNotAllowed")


def unknown_method(method: bytes) -> MalformedHead:
    """Return the error for a request whose method is not registered in any specification."""
    return MalformedHead(f"the method {_named(method)} is not known", reason="unsupported")


_ASTERISK: Final = "the proxy does not support the target '*'; name a path"
_ONE_SPACE: Final = "use one space between method, target and version, and no other spaces"


def _fault(line: bytes) -> MalformedHead:
    """Return the first fault in the request line `line`.

    `line` is a request line that the proxy does not support.
    """
    method = line.partition(b" ")[0]
    if method in (b"CONNECT", b"TRACE"):
        return method_not_allowed(method)
    if line.startswith(b"PRI * HTTP/2"):
        return MalformedHead("the proxy does not support HTTP/2; use HTTP/1.1", reason="unsupported")
    if not line:
        return MalformedHead("an empty line is in place of the request line")
    if _BEYOND_ASCII.search(line):
        return _beyond_ascii(line)
    control = _CONTROL.search(line)
    if control is not None:
        return _control_character(control[0])
    words = line.split(b" ")
    if b"" in words:
        return MalformedHead(f"the request line has a space too many: {_ONE_SPACE}")
    has_version = words[-1].upper().startswith(b"HTTP/")
    if len(words) - has_version < 2:
        return MalformedHead("the request line has no target")
    if not has_version:
        return MalformedHead("the request line does not end in a version; HTTP/1.1 and HTTP/1.0 are served")
    if len(words) > 3:
        return _bad_target("the target contains a space; encode it as %20")
    return _fault_of_parts(words[0], words[1], words[2])


def _fault_of_parts(method: bytes, target: bytes, version: bytes) -> MalformedHead:
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        if _VERSION.fullmatch(version):
            text = f"the proxy does not support {version.decode()}; use HTTP/1.1"
            return MalformedHead(text, reason="unsupported")
        return MalformedHead(f"{_named(version)} is not a version of HTTP; write HTTP/1.1")
    if not _TOKEN.fullmatch(method):
        return MalformedHead(f"the method {_named(method)} is not a token (RFC 9110 §9.1)")
    if method != method.upper():
        text = f"the method {_named(method)} is not known; methods are written in capitals"
        return MalformedHead(text, reason="unsupported")
    if not re.fullmatch(rb"[A-Z-]+", method):
        return unknown_method(method)
    return _fault_of_target(target)


def _fault_of_target(target: bytes) -> MalformedHead:
    if target == b"*":
        return _bad_target(_ASTERISK)
    if _SCHEME.match(target):
        return _bad_target("the target is a URL of another scheme than http and https")
    if HOST_AND_PORT.fullmatch(target) and b":" in target:
        return _bad_target("the target names a host and port, which only CONNECT does; name a path")
    return _bad_target("the target does not begin with '/'")


def _beyond_ascii(line: bytes) -> MalformedHead:
    if _BEYOND_ASCII.search(line.partition(b" ")[0]):
        return MalformedHead("the method contains a byte beyond ASCII")
    return _bad_target(
        "the target contains a byte beyond ASCII; encode characters beyond ASCII as %XX (é is %C3%A9)"
    )


def _control_character(found: bytes) -> MalformedHead:
    if found in (b"\n", b"\r"):
        return MalformedHead("the request line contains a bare CR or LF; a line ends with both")
    if found == b"\t":
        return MalformedHead(f"the request line contains a tab: {_ONE_SPACE}")
    return _bad_target(f"the request line contains a control character; encode it as %{ord(found):02X}")


def _bad_target(message: str) -> MalformedHead:
    return MalformedHead(message, reason="malformedTarget")


def _named(text: bytes) -> str:
    """Return a short excerpt of the application's text, in quotes."""
    cut = text if len(text) <= _LONGEST_NAMED else text[:_LONGEST_NAMED] + b"..."
    return f"'{cut.decode('ascii', 'backslashreplace')}'"


def _host_and_port(scheme: bytes, authority: bytes) -> tuple[bytes, bytes]:
    """Return the host of the authority in lower case, and the port of the authority without leading zeros.

    If the authority of the URL names no port, the port is the default port of the scheme.
    """
    ends = authority.rfind(b"]") + 1  # an IPv6 address, which also contains colons
    name, _, port = authority[ends:].partition(b":")
    return (authority[:ends] + name).lower(), port.lstrip(b"0") or _DEFAULT_PORT[scheme]
