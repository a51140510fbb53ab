"""Pure functions that describe the effect of an emergency stop, and of lifting it, in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.operations.emergency import StopFacts
from controlplane.operations.stop_effects import StopEffect
from proxy.wire.figures import counted


def what_stops(effect: StopEffect) -> str:
    """Return the name of the stopped app or organisation, or `everything`."""
    if effect.app is not None:
        return effect.app
    return f"organisation {effect.org}" if effect.org is not None else "everything"


def consequences(effect: StopEffect) -> tuple[str, str]:
    """Return a sentence on the requests of the last hour, and one sentence on the effect of the stop."""
    whose = _whose(effect)
    if effect.requests is None:
        asked = f"The number of requests that {whose} sent in the last hour is not known now."
    elif effect.requests == 0:
        asked = f"{_capital(whose)} sent no request in the last hour."
    else:
        asked = f"{_capital(whose)} sent {counted(effect.requests, 'request')} in the last hour."
    where = "no proxy" if not effect.proxies else f"each of {counted(effect.proxies, 'proxy')}"
    if effect.proxies == 1:
        where = "the one proxy"
    refused = f"All requests will get 403 from {where} within about {effect.sync_interval_seconds} s."
    if not effect.proxies:
        refused = "No proxy serves them now; a proxy that is added later refuses them."
    return asked, refused


def _whose(effect: StopEffect) -> str:
    if effect.app is not None:
        return effect.app
    apps = counted(effect.apps, "app")
    return f"the {apps} of {effect.org}" if effect.org is not None else f"the {apps} of every organisation"


def name_of(stop: StopFacts) -> str:
    if stop.scope == "all":
        return "everything"
    if stop.scope == "org":
        return f"organisation {stop.org or stop.org_id}"
    return stop.app or stop.app_id or ""


def remaining(stop: StopFacts, stops: Iterable[StopFacts]) -> tuple[str, ...]:
    """Return sentences on the emergency stops that remain after `stop` is lifted."""
    others = [each for each in stops if each is not stop]
    if not others:
        return ("No other stop remains.",)
    names = ", ".join(map(name_of, others))
    found = [f"{counted(len(others), 'stop')} will remain: {names}."]
    if stop.scope == "app" and any(_covers(each, stop) for each in others):
        found.append(f"So {name_of(stop)} stays stopped.")
    return tuple(found)


def _covers(wider: StopFacts, stop: StopFacts) -> bool:
    return wider.scope == "all" or (wider.scope == "org" and wider.org_id == stop.org_id)


def _capital(text: str) -> str:
    return text if text[:1].isupper() else text[:1].upper() + text[1:] if text.startswith("the ") else text
