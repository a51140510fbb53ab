"""The operator's next steps after a command, as lines of text to read and to paste.

The functions of the module `next_steps` are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final, Literal

from controlplane.programs import proxy_beside
from controlplane.store.interface import RETENTION_MS, RETENTION_WORDS, CredentialKind, Retention

RETENTION_HELP: Final = (
    "Time for which audit events are kept: base is 30 days; 90d, 1y and 7y are longer. "
    "Older events are deleted permanently."
)
_AGENT_SETTINGS: Final = (
    "  [RuleSync]",
    '  SaasBaseUrl = "https://CONTROL-PLANE:8090"  # the name of its certificate, the port of its proxies',
    "  # If a private authority made the certificate: Agent.CaFile names the file of the authority.",
)


@dataclass(frozen=True, slots=True)
class Typed:
    """First words of the operator's command, as typed.

    The suggested next commands begin with the words with which the operator's command began.
    """

    program: str  # `graphward`, or `python -m controlplane`
    options: tuple[str, ...] = ()  # --config FILE, or --url URL and --token-file FILE

    def __call__(self, *words: str) -> str:
        """Return a command line with the operator's options, on its own line.

        Words in capital letters in the command are placeholders.
        """
        return "  " + " ".join((self.program, *map(quote, self.options), *words))

    @property
    def proxy(self) -> str:
        """Command that starts the proxy: `graphward-proxy`, or `python -m proxy` without an installation."""
        return proxy_beside(self.program)


def after_org(typed: Typed, name: str, retention: Retention) -> Iterator[str]:
    """Return the operator's next steps after the command `org add`."""
    org = quote(name)
    yield f"Audit events of {name} are kept for {RETENTION_WORDS[retention]}, and then deleted permanently."
    longer = [each for each, kept_ms in RETENTION_MS.items() if kept_ms > RETENTION_MS[retention]]
    if longer:
        yield f"To keep them longer ({', '.join(longer)}):"
        yield typed("org", "set-retention", org, longer[0])
    yield "Next, add rules, a proxy and an application:"
    yield typed("ruleset", "apply", "FILE", "--org", org)
    yield typed("proxy", "add", "NAME", "--org", org)
    yield typed("app", "add", "NAME", "--org", org, "--ruleset", "RULESET")


def after_app(
    typed: Typed, name: str, org: str, secret: tuple[str, str], address: str | None
) -> Iterator[str]:
    """Yield the text at the end of the output of `app add`: the operator's next steps.

    The next steps include settings and code for the new application.

    `secret` is the pair of client ID and client secret. `address` is the address that a proxy reported, or
    None.
    """
    client_id, client_secret = secret
    proxy = address or "https://PROXY"
    yield "The client secret is shown only once. To replace it:"
    yield typed("app", "rotate-secret", quote(name), "--org", quote(org))
    if address is None:
        yield "Proxies serve the app after their next sync. Replace PROXY with the address of a proxy:"
    else:
        yield f"Proxies serve the app after their next sync. A proxy reported the address {address}:"
    yield ""
    yield "  # for every SDK of Azure and Microsoft Graph"
    yield f"  AZURE_AUTHORITY_HOST={proxy}"
    yield "  AZURE_TENANT_ID=adfs"
    yield f"  AZURE_CLIENT_ID={client_id}"
    yield f"  AZURE_CLIENT_SECRET={client_secret}"
    yield ""
    yield "  # get a token and send a request; for a private certificate authority: curl --cacert FILE"
    yield f"  TOKEN=$(curl -sS {proxy}/adfs/oauth2/v2.0/token -d grant_type=client_credentials \\"
    yield f"    -d client_id={client_id} \\"
    yield f"    -d client_secret={client_secret} | jq -r .access_token)"
    yield f"  curl -sS -H \"Authorization: Bearer $TOKEN\" '{proxy}/v1.0/users?$top=5'"
    yield ""
    yield "  # Python: azure-identity and msgraph-sdk"
    yield "  from azure.identity import ClientSecretCredential"
    yield "  credential = ClientSecretCredential("
    yield f'      "adfs", "{client_id}",'
    yield f'      "{client_secret}",'
    yield f'      authority="{proxy}")'
    yield ""
    yield "docs/how-to/connect-an-application.md has the complete example, and other languages."


def after_app_without_secret(typed: Typed, name: str, org: str) -> Iterator[str]:
    """Return the operator's next steps after the command `app add --no-secret`.

    The next steps are the commands that add another credential.
    """
    whose = (quote(name), "--org", quote(org))
    yield "The app has no client secret. Give it one of these credentials:"
    yield typed("app", "federated", "add", *whose, "--issuer", "URL", "--subject", "TEXT")
    yield typed("app", "key", "add", *whose, "FILE")
    yield typed("app", "certificate", "add", *whose, "FILE")
    yield "Each command shows the settings that the application then needs."


def after_credential(
    kind: Literal["secret", CredentialKind], client_id: str, address: str | None
) -> Iterator[str]:
    """Return the operator's next steps after a credential was added: the lines that its application needs.

    `address` is the address that a proxy reported, or None.
    """
    proxy = address or "https://PROXY"
    yield "The application needs these lines." + (
        "" if address else " Replace PROXY with the address of a proxy:"
    )
    yield ""
    own = {
        "federated": "AZURE_FEDERATED_TOKEN_FILE=FILE",
        "publicKey": "AZURE_CLIENT_CERTIFICATE_PATH=app.pem",
    }
    if kind in own:
        yield "  # for every SDK of Azure and Microsoft Graph"
        yield f"  AZURE_AUTHORITY_HOST={proxy}"
        yield "  AZURE_TENANT_ID=adfs"
        yield f"  AZURE_CLIENT_ID={client_id}"
        yield f"  {own[kind]}"
        yield ""
    match kind:
        case "federated":
            yield "  # Python: `get_token` returns a new token of the platform"
            yield "  from azure.identity import ClientAssertionCredential"
            yield f'  ClientAssertionCredential("adfs", "{client_id}", get_token,'
            yield f'      authority="{proxy}")'
        case "publicKey":
            yield "  # Python: app.pem has the private key and the certificate"
            yield "  from azure.identity import CertificateCredential"
            yield f'  CertificateCredential("adfs", "{client_id}", "app.pem",'
            yield f'      authority="{proxy}")'
        case _:
            yield "  # app.pem has the private key and the certificate; requests need it too"
            yield f"  TOKEN=$(curl -sS --cert app.pem {proxy}/adfs/oauth2/v2.0/token \\"
            yield f"    -d grant_type=client_credentials -d client_id={client_id} | jq -r .access_token)"
            yield f"  curl -sS --cert app.pem -H \"Authorization: Bearer $TOKEN\" '{proxy}/v1.0/users?$top=5'"
    yield ""
    yield "docs/how-to/connect-an-application.md has the complete example, and other languages."


def after_proxy(typed: Typed, api_key: str, hmac_secret: str, name: str) -> Iterator[str]:
    """Return the operator's next steps after the command `proxy add`: the settings that the proxy needs."""
    yield "Both secrets are shown only once. To replace them without an interruption:"
    yield typed("proxy", "rotate-secret", quote(name), "--grace", "24h")
    yield "Set them in the environment of the proxy, and in its settings the address of"
    yield "this control plane:"
    yield ""
    yield from _keys(api_key, hmac_secret)
    yield ""
    yield from _AGENT_SETTINGS
    yield ""
    yield "Next, on the host of the proxy, check the settings:"
    yield f"  {typed.proxy} --config FILE --doctor"
    yield "Then check here that it sends heartbeats and has its rules:"
    yield typed("proxy", "show", quote(name))


def after_new_keys(
    typed: Typed, api_key: str, hmac_secret: str, name: str, old_until: str | None
) -> Iterator[str]:
    """Return the operator's next steps after the command `proxy rotate-secret`.

    `old_until` is the time at which the proxy's old keys expire.
    """
    yield "Both secrets are shown only once. Replace the old ones at the proxy, and restart it:"
    yield ""
    yield from _keys(api_key, hmac_secret)
    yield ""
    if old_until is None:
        yield "The old keys have ended. With --grace 24h, a rotation leaves them valid for that time."
    else:
        yield f"The old keys work until {old_until}, or 1 h after the new ones are first used."
    yield "Then check here that the proxy sends heartbeats:"
    yield typed("proxy", "show", quote(name))


def _keys(api_key: str, hmac_secret: str) -> Iterator[str]:
    yield f"  export Agent__ApiKey={api_key}"
    yield f"  export Agent__HmacSecret={hmac_secret}"


def after_keys_of_enrolled(typed: Typed, name: str) -> Iterator[str]:
    """Explain what new keys change for a proxy that enrolled itself, and how to avoid setting new keys.

    Instead of receiving new keys, the proxy can enrol again.
    """
    yield f"{name} enrolled itself. Once Agent__ApiKey is set, the proxy ignores the file at"
    yield "Agent.IdentityPath, and no longer renews its keys."
    yield "To let the proxy renew its keys, do not give the new secrets to the proxy."
    yield "Delete the file on the host of the proxy, and start the proxy with a valid enrolment token: the"
    yield "proxy enrols with another ID. Then delete this entry:"
    yield typed("proxy", "delete", quote(name))


def after_enrolment_token(typed: Typed, name: str, token: str, expires: str) -> Iterator[str]:
    """Return the operator's next steps after an enrolment token was made: the settings of its proxies."""
    yield f"The token is shown only once. It works until {expires}. To end it earlier:"
    yield typed("proxy", "enrol-token", "revoke", quote(name))
    yield "Set it in the environment of the proxies, without an API key, and these lines in"
    yield "their settings:"
    yield ""
    yield f"  export Agent__EnrolmentToken={token}"
    yield ""
    yield "  [Agent]"
    yield '  IdentityPath = "/var/lib/graphward-proxy/identity.json"  # the proxy writes it'
    yield from _AGENT_SETTINGS
    yield ""
    yield "Then list the proxies that enrolled with the token:"
    yield typed("proxy", "enrol-token", "show", quote(name))


def after_grant(typed: Typed, name: str, org: str) -> Iterator[str]:
    """Return the operator's next steps after the command `proxy grant`."""
    yield f"The proxy serves {org} after its next sync. To see whether it has the rules:"
    yield typed("proxy", "show", quote(name))


def after_rotation(version: int, old_until: str | None, client_secret: str) -> Iterator[str]:
    """Return the operator's next steps after a client secret was replaced.

    `old_until` is the time at which the old client secret expires.
    """
    yield f"This is version {version} of the secret. The secret is shown only once."
    yield "Give the secret to the application now:"
    yield f"  AZURE_CLIENT_SECRET={client_secret}"
    if old_until is None:
        yield "The old secret and its tokens end at the next sync of each proxy."
        yield "With --grace 24h, a rotation leaves the old secret valid for that time."
    else:
        yield f"The old secret is valid until {old_until}."


def after_ruleset(typed: Typed, name: str, org: str) -> Iterator[str]:
    """Return the operator's next steps after a command `ruleset apply` that made a change."""
    yield "Proxies enforce this version after their next sync. To wait until all of them do:"
    yield typed("proxy", "wait", "--ruleset", quote(name), "--org", quote(org))
    yield "To use the rules for a new application:"
    yield typed("app", "add", "NAME", "--org", quote(org), "--ruleset", quote(name))


def after_model(typed: Typed, orgs: Sequence[str]) -> Iterator[str]:
    """Return the operator's next steps after the command `model fetch`."""
    yield "A ruleset uses the schema from the next time that it is applied:"
    yield typed("ruleset", "apply", "FILE", "--org", quote(orgs[0]) if len(orgs) == 1 else "ORG")


def after_stop(typed: Typed, place: Sequence[str]) -> Iterator[str]:
    """Return the operator's next steps after the command `kill`.

    `place` contains the command-line words that name the target of the emergency stop.
    """
    words = tuple(map(quote, place))
    yield "Proxies refuse the requests after their next sync. To see which have confirmed it:"
    yield typed("kill", "reach", *words)
    yield "To lift the stop:"
    yield typed("unkill", *words)


def after_operator(typed: Typed, name: str, *, has_role: bool, sign_in: bool) -> Iterator[str]:
    """Return the operator's next steps after the command `operator add`.

    `sign_in` is True if the new operator can sign in to the console.
    """
    if not has_role:
        yield "The operator has no role yet. To give one (viewer, editor or admin):"
        yield typed("operator", "grant", quote(name), "--role", "viewer", "--org", "ORG")
    if sign_in:
        yield "The operator signs in to the console with this name. To make an API token for a program:"
    else:
        yield "The operator has no password and can't sign in to the console. To set a password:"
        yield typed("operator", "set-password", quote(name))
        yield "To make an API token for a program:"
    yield typed("operator", "token", "add", quote(name), "TOKEN-NAME")


def after_token(typed: Typed, until: str, console: str, *, renewed: bool) -> Iterator[str]:
    """Return the operator's next steps after the command `operator token add`.

    `console` is the address of the console, or an empty text if unknown.

    If `renewed` is True, each sign-in of the operator at the identity provider extends the API token.
    """
    yield f"The token is shown only once, and is valid until {until}."
    if renewed:
        yield "The operator's roles end at that time. Each sign-in at the identity provider renews them."
    yield "Save it in a file that only its program can read. To use it for commands:"
    yield ""
    yield f"  export GRAPHWARD_URL={console or 'https://CONSOLE'} GRAPHWARD_TOKEN_FILE=FILE"
    yield f"  {typed.program} app list"
    yield ""
    if not console:
        yield "Replace CONSOLE with the address at which operators open the console."
    yield "For a private certificate authority, also set SSL_CERT_FILE to its file."


def after_refused_token(ended: str) -> Iterator[str]:
    """Return the operator's next steps after `operator token add` for an operator whose roles have ended.

    Roles from the identity provider end unless the operator signs in again in time.
    """
    yield "The token is shown only once."
    yield f"It is refused until the operator signs in again: the roles ended on {ended}."


def not_active_yet(proposal: str) -> str:
    """Return the operator's next steps after a change was stored as a proposal."""
    return f"Not active yet: another editor must approve it (`ruleset approve {proposal}`, or the console)."
