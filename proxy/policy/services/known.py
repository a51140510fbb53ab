"""Find the known facts about the service to which a schema belongs."""

from __future__ import annotations

from typing import Final

from proxy.policy.resource_model import ResourceModel
from proxy.policy.services.facts import NO_FACTS, Facts
from proxy.policy.services.graph import GRAPH_FACTS

_KNOWN: Final = (GRAPH_FACTS,)


def facts_of(model: ResourceModel) -> Facts:
    """Return the facts about the schema's service, or NO_FACTS if no namespace of the schema is known."""
    for facts in _KNOWN:
        if model.has_space_of(facts.namespace + "."):
            return facts
    return NO_FACTS
