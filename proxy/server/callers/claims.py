"""Claims and header of a proxy token."""

import msgspec


class Confirmation(msgspec.Struct):
    """Certificate that a token is bound to (RFC 8705 §3.1)."""

    thumbprint: str = msgspec.field(name="x5t#S256")


class Claims(msgspec.Struct):
    iss: str
    aud: str
    sub: str
    org: str
    ver: int
    iat: int
    nbf: int
    exp: int
    jti: str
    cid: str | None = None  # id of the credential that authenticated the caller, or None for a client secret
    cnf: Confirmation | None = None  # None if the token is not bound to a certificate


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """Header of a proxy token, exactly as the proxy writes it.

    A header with `jku`, `jwk`, `x5u`, `crit` or a similar parameter is rejected, and the parameter is not
    read.
    """

    alg: str
    kid: str
    typ: str
