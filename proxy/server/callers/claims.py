"""What a token of ours holds."""

import msgspec


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


class Header(msgspec.Struct, forbid_unknown_fields=True):
    """Exactly the header that we write: `jku`, `jwk`, `x5u`, `crit` and their kind are refused unread."""

    alg: str
    kid: str
    typ: str
