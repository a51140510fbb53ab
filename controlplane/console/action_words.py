"""Pure functions that describe the actions of operators in words."""

from __future__ import annotations

from typing import Final

_WORDS: Final = {
    "app.add": "added an app",
    "app.bind": "changed the ruleset of an app",
    "app.disable": "disabled an app",
    "app.enable": "enabled an app",
    "app.promote-shadow": "switched an app to its shadow ruleset",
    "app.certificate.add": "added a client certificate to an app",
    "app.credential.end": "set the end of a credential of an app",
    "app.credential.remove": "removed a credential of an app",
    "app.federated.add": "added a federated credential to an app",
    "app.key.add": "added a public key to an app",
    "app.rotate-secret": "replaced the secret of an app",
    "app.shadow": "changed the shadow ruleset of an app",
    "config.apply": "applied a directory of files",
    "kill.all": "stopped everything",
    "kill.app": "stopped an app",
    "kill.org": "stopped an organisation",
    "model.fetch": "fetched a schema",
    "operator.add": "added an operator",
    "operator.disable": "disabled an operator",
    "operator.enable": "enabled an operator",
    "operator.grant": "gave an operator a role",
    "operator.link": "linked an operator to a person of the identity provider",
    "operator.revoke": "removed a role of an operator",
    "operator.set-password": "set the password of an operator",
    "operator.token.add": "made an API token",
    "operator.token.revoke": "revoked an API token",
    "operator.unlink": "removed the link of an operator to a person",
    "org.add": "added an organisation",
    "org.set-retention": "changed the retention of an organisation",
    "proxy.acknowledge": "acknowledged the losses of a proxy",
    "proxy.add": "added a proxy",
    "proxy.disable": "disabled a proxy",
    "proxy.enable": "enabled a proxy",
    "proxy.grant": "granted a proxy access to an organisation",
    "proxy.revoke": "revoked a proxy's access to an organisation",
    "proxy.rotate-secret": "replaced the secrets of a proxy",
    "ruleset.apply": "published a ruleset",
    "ruleset.rollback": "rolled a ruleset back",
    "unkill.all": "lifted the stop of everything",
    "unkill.app": "lifted the stop of an app",
    "unkill.org": "lifted the stop of an organisation",
}


def words_of(operation: str) -> str:
    """Return a description of an operation, or the operation's name if it has no description."""
    return _WORDS.get(operation, operation)
