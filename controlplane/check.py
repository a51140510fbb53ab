"""Checks that `--check` makes after it has read the settings file: certificates, master key, directories."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from controlplane.secrets import MasterKeyError, read_master_key
from controlplane.settings import Settings
from proxy.config.placeholder import is_entra
from proxy.config.tls import problem_of, problem_of_authorities, server_tls
from proxy.outbound.settings import egress_of
from proxy.process.own_process import problem_of_directory

_GUID: Final = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def problems_of(settings: Settings) -> list[str]:
    """Return one line for each problem that would prevent the control plane from starting.

    `problems_of` creates no file and opens no connection.
    """
    return [*_certificates(settings), *_master_key(settings), *_directories(settings)]


def warnings_of(settings: Settings) -> Iterator[str]:
    """Yield a warning for each setting that is allowed but usually a mistake."""
    yield from settings.without_effect
    yield from settings.egress.ignored
    console = settings.console
    if console.oidc_issuer and not console.oidc_client_secret:
        yield "Console.OidcClientSecretis missing: this is correct only for a registration without a secret"
    if is_entra(console.oidc_issuer):
        for each in console.oidc_roles:
            if each.claim == "groups" and _GUID.fullmatch(each.value) is None:
                what = "Microsoft Entra sends the object ID of a group, unless it is configured otherwise"
                yield f"Console.OidcRoles.{each.name}.Value: {each.value!r} is not an ID: {what}"


def ways_out(settings: Settings) -> Iterator[str]:
    """Yield a line for each HTTP address in the settings: reached directly, or through the egress proxy.

    Yield no line if no egress proxy is set.
    """
    egress = egress_of(settings.egress)
    if egress.proxy is None:
        return
    for name, url in targets(settings):
        yield f"way to {name}: {egress.way_to(url)}"


def targets(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the name and the HTTP address of each setting to which the egress settings apply."""
    if settings.console.oidc_issuer:
        yield "Console.OidcIssuer", settings.console.oidc_issuer
    if settings.secrets.master_key_vault_url:
        yield "Secrets.MasterKeyVaultUrl", settings.secrets.master_key_vault_url
    for sink in settings.sinks:
        for attribute, key in (("url", "Url"), ("endpoint_url", "EndpointUrl")):
            url = getattr(sink, attribute, "")
            if url.startswith(("http://", "https://")):
                yield f"Sinks.{sink.name}.{key}", url


def _certificates(settings: Settings) -> Iterator[str]:
    for section, listener in (("ControlPlane", settings.control_plane), ("Console", settings.console)):
        if listener.cert_file is not None:
            load = partial(server_tls, listener.cert_file, listener.key_file)
            if problem := problem_of(load):
                yield f"{section}.CertFile: {problem}"
    ca_file = settings.search_index.ca_file
    if ca_file is not None and (problem := problem_of_authorities(ca_file)):
        yield f"SearchIndex.CaFile: {problem}"


def _master_key(settings: Settings) -> Iterator[str]:
    path = settings.secrets.key_file
    if path is not None and path.exists():  # The first start makes a missing file.
        try:
            read_master_key("", path)
        except MasterKeyError as error:
            yield f"Secrets.MasterKeyFile: {error}"


def _directories(settings: Settings) -> Iterator[str]:
    paths = {"Secrets.MasterKeyFile": settings.secrets.key_file}
    if not settings.store.url:
        paths["Store.Path"] = settings.store.path
    for key, path in paths.items():
        if path is not None and (problem := problem_of_directory(path.parent)):
            yield f"{key}: {problem}"
