"""What a token of ours holds."""

import msgspec


class Confirmation(msgspec.Struct):
    """The certificate that a token is bound to (RFC 8705 §3.1)."""

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
    cid: str | None = None  # the credential that proved the caller; None: a client secret
    cnf: Confirmation | None = None  # None: the token is not bound


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """Exactly the header that we write: `jku`, `jwk`, `x5u`, `crit` and their kind are refused unread."""

    alg: str
    kid: str
    typ: str
