"""Distinguish an operation of a collection from the ID of an object in the collection.

This module has the names of functions and actions that bind to a collection in Microsoft Graph's `$metadata`
of v1.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from proxy.policy.odata import fold

_FUNCTION_NAMES: Final = """
    additionalAccess asHierarchy availableProviderTypes computeInheritance count creationOptions delta
    filterByCurrentUser getAllMessages getAllRecordings getAllRetainedMessages getAllSites
    getAllTranscripts getAuditActivityTypes getAuditCategories getByUserIdAndRole getByUserRole
    getCompatibleHubContentTypes getDeploymentAccessKey getDeploymentPackageUri getDirectRoutingCalls
    getOrder getPstnCalls getRecentNotebooks getSourceImages getTeamsLicensingDetails
    getUserIdsWithFlaggedAppRegistration item itemAt recent summarizeDevicePerformanceDevices summary
"""
_ACTION_NAMES: Final = """
    activate add addCopy addCopyFromContentTypeHub addFormulaLocal applyHold archive assign assignNumber
    clockIn computeRightsAndInheritance confirmCompromised confirmSafe create createOrGet createSnapshot
    createUploadSession dismiss favorite getAvailableExtensionProperties getByIds getNotebookFromWebUrl
    import invite logTeleconferenceDeviceQuality markRead markUnread mergeIncidents moveAlerts
    refreshAll regenerateDeploymentAccessKey remediate remove removeHold replyWithQuote search
    setCurrentLocation setOrder unarchive unassign unassignNumber unfavorite updateNumber
    validateAuthenticationConfiguration validateCredentials validateProperties
"""
FUNCTIONS: Final = frozenset([fold(name) for name in _FUNCTION_NAMES.split()])
ACTIONS: Final = frozenset([fold(name) for name in _ACTION_NAMES.split()])
OPERATIONS: Final = FUNCTIONS | ACTIONS

# Other methods cannot call an operation, so a segment that looks like an operation is a key.
FUNCTION_METHODS: Final = frozenset(("GET", "HEAD", "POST"))

# Names of one object: a property or an operation of it follows, not a key.
_NOT_COLLECTIONS: Final = frozenset(("v1.0", "beta", "me", "root", "manager", "drive"))


def key_positions(segments: tuple[str | None, ...]) -> tuple[int, ...]:
    """Return the positions of those wildcards in a path pattern that may match an object ID.

    The first segment of a pattern is never such a position. A later wildcard may match an object ID in these
    cases:

    - The segment before the wildcard can be the name of a collection.
    - The segment before the wildcard is another wildcard that cannot match an object ID.
    - All segments before the wildcard are wildcards.
    """
    found: list[int] = []
    for at in range(len(segments)):
        if segments[at] is not None or at == 0:
            continue
        before = segments[at - 1]
        if before is not None:
            is_key = before not in _NOT_COLLECTIONS
        else:
            # After nothing but wildcards, each may match a key.
            is_key = at - 1 not in found or not any(segments[:at])
        if is_key:
            found.append(at)
    return tuple(found)


def operation_at(
    positions: Iterable[int], words: tuple[str, ...], keys: tuple[int, ...], method: str
) -> str | None:
    """Return the first operation at one of the positions that the HTTP method can call.

    At each of the `positions`, a rule's pattern matches any object ID. The HTTP method must be in capitals.
    The path segments at the positions in `keys` are certainly object IDs, not operations. An OData action is
    always the last segment of a path.
    """
    if method not in FUNCTION_METHODS:
        return None
    for at in positions:
        word = words[at]
        if word not in OPERATIONS or at in keys:
            continue
        if word in FUNCTIONS or (method == "POST" and at == len(words) - 1):
            return word
    return None
