"""Settings section `[Egress]` of proxy and control plane.

An environment variable gives the value of a key that the settings section lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from proxy.config import SettingsError, setting
from proxy.config.declare import derived
from proxy.outbound.egress import DIRECT, Bypass, Egress, egress_proxy, parse_bypass, parse_proxy_url

PROXY_VARIABLES: Final = ("https_proxy", "HTTPS_PROXY")  # the first variable that is set counts, as in curl
BYPASS_VARIABLES: Final = ("no_proxy", "NO_PROXY")
_IGNORED: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_BETWEEN: Final = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressSettings:
    """HTTP proxy through which Graphward connects to other hosts."""

    proxy_url: str = setting(
        default="",
        secret=True,
        parse=parse_proxy_url,
        doc="HTTP proxy for every outgoing connection, by `CONNECT`: `http://host:port` or "
        "`http://user:password@host:port`. By default, the variable `HTTPS_PROXY` names the one for "
        "https:// addresses.",
    )
    no_proxy: tuple[Bypass, ...] = setting(
        default=(),
        parse=parse_bypass,
        doc="Hosts that are reached directly: names (with their subdomains), addresses, networks such as "
        "`10.0.0.0/8`, or `*`. Each can have a `:port`. By default it is the variable `NO_PROXY`.",
    )
    # Name of the variable with the proxy; empty if the settings name it, or if there is none.
    proxy_variable: str = derived("")
    bypass_variable: str = derived("")
    ignored: tuple[str, ...] = derived(())  # one line for each variable, or part of one, without effect


def egress_of(settings: EgressSettings) -> Egress:
    """Return the egress configuration that the settings and the environment variables describe."""
    bypass_source = settings.bypass_variable or "Egress.NoProxy"
    if not settings.proxy_url:
        every = tuple(each for each in settings.no_proxy if each.text == "*")
        return Egress(bypasses=every, bypass_source=bypass_source) if every else DIRECT
    source = settings.proxy_variable or "Egress.ProxyUrl"
    return Egress(
        replace(egress_proxy(settings.proxy_url), source=source),
        settings.no_proxy,
        bypass_source,
        https_only=bool(settings.proxy_variable),
    )


def with_variables(settings: EgressSettings, environ: Mapping[str, str]) -> EgressSettings:
    """Complete the settings section `[Egress]` with proxy variables such as `HTTPS_PROXY`.

    Raise SettingsError if the proxy variables can't be used.
    """
    proxy_variable = bypass_variable = ""
    proxy_url, bypasses, ignored = settings.proxy_url, settings.no_proxy, []
    if not bypasses:
        bypass_variable = _first(BYPASS_VARIABLES, environ)
        bypasses, unreadable = _bypasses(environ.get(bypass_variable, ""))
        ignored += [f"{bypass_variable}: {each}" for each in unreadable]
    if not proxy_url and not any(each.text == "*" for each in bypasses):
        proxy_variable = _first(PROXY_VARIABLES, environ)
        proxy_url = environ.get(proxy_variable, "").strip()
        _refuse_unusable(proxy_variable, proxy_url)
    ignored += _without_effect(environ, proxy_url=proxy_url, proxy_variable=proxy_variable)
    return replace(
        settings,
        proxy_url=proxy_url,
        no_proxy=bypasses,
        proxy_variable=proxy_variable,
        bypass_variable=bypass_variable,
        ignored=tuple(ignored),
    )


def egress_of_variables(environ: Mapping[str, str]) -> Egress:
    """Return the egress configuration of a program that has no settings file. Raise SettingsError."""
    return egress_of(with_variables(EgressSettings(), environ))


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str:
    return next((name for name in names if environ.get(name, "").strip()), "")


def _refuse_unusable(variable: str, proxy_url: str) -> None:
    """Raise SettingsError if an environment variable such as `HTTPS_PROXY` is not a valid proxy URL.

    If the program ignored an unusable proxy variable, its connections would take an unintended route.
    """
    if proxy_url:
        try:
            parse_proxy_url(proxy_url)
        except ValueError as error:
            instead = "or set Egress.ProxyUrl, or Egress.NoProxy to * for no egress proxy"
            raise SettingsError([f"environment: {variable}: {error}; {instead}"]) from None


def _bypasses(text: str) -> tuple[tuple[Bypass, ...], list[str]]:
    """Return the entries of the variable `NO_PROXY`, and a problem for each entry that can't be parsed.

    Other programs use the variable `NO_PROXY` too. An unreadable entry of `NO_PROXY` therefore does not
    prevent the start of the program.
    """
    found, problems = [], []
    for each in filter(None, _BETWEEN.split(text)):
        try:
            found.append(parse_bypass(each))
        except ValueError as error:
            problems.append(f"{each} has no effect: {error}")
    return tuple(found), problems


def _without_effect(environ: Mapping[str, str], *, proxy_url: str, proxy_variable: str) -> Iterator[str]:
    """Yield a line for each proxy variable of the environment that is set but has no effect."""
    for name in PROXY_VARIABLES:
        value = environ.get(name, "").strip()
        if value and proxy_url and name != proxy_variable and value != proxy_url:
            yield f"{name}: has no effect, because of {proxy_variable or 'Egress.ProxyUrl'}"
    if proxy_url:
        return
    for name in _IGNORED:
        if environ.get(name, "").strip():
            yield f"{name}: has no effect: Egress.ProxyUrl or HTTPS_PROXY names the egress proxy"
