"""Distinguish resource names from object IDs in a request path, without a schema."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from proxy.policy.canonical import UNTAKEN, Name, Target
from proxy.policy.known_names import RESOURCES
from proxy.policy.odata import fold
from proxy.policy.paths import MAX_PATTERN_SEGMENTS, InvalidPattern, parse_pattern
from proxy.policy.rule_finder import importance_of

# Collections of Graph whose members have keys. A segment after one of these is a key, unless it names a
# function, action or type.
_COLLECTION_NAMES = """
    accesspackages agreements applications appmanagementpolicies approleassignedto approleassignments
    apps assignments attachments calendargroups calendars calendarview calls channels chats childfolders
    children classes columns contactfolders contacts contenttypes contracts conversations definitions
    deletedfromteams deleteditems deviceappmanagementtasks devicecompliancepolicies deviceconfigurations
    devices directoryaudits directoryobjects directoryroles directoryroletemplates domains drives events
    extensions federatedidentitycredentials following grouplifecyclepolicies groups groupsettings
    instances items joinedteams licensedetails lists mailfolders managedapppolicies manageddevices
    memberof members messagerules messages messagesrules mobileapps namedlocations notebooks
    oauth2permissiongrants onlinemeetings operations organization ownedobjects owners pages parents
    participants people permissions photos places plans policies posts rejectedsenders replies
    roleassignments roledefinitions rooms rubrics schools sectiongroups sections serviceprincipals
    shares shifts signins sites siteupdates subscribedskus subscriptions tabs tasks teams teamsapps
    threads thumbnails transitivememberof transitivemembers translations users versions windows
    workbooks worksheets
"""
COLLECTIONS: Final = frozenset(_COLLECTION_NAMES.split())
_NAMES_WITH_PLURAL: Final = {"people": "person", "children": "child", "calendarview": "event"}

_GUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_NAME: Final = re.compile(r"\$?[A-Za-z][A-Za-z0-9]*")  # name of a resource, function, action or property
_FUNCTION: Final = re.compile(
    r"delta|recent|sharedWithMe|root|me|(?:get|find|filter|search|retrieve|check|validate|verify|is|has|list|export)[A-Z]\w*"
)
KNOWN_RESOURCES: Final = frozenset([fold(name) for name in RESOURCES])
_ALWAYS_WORDS: Final = 2  # segments
_LONG: Final = 16  # characters; names of this length contain few digits
_MANY_DIGITS: Final = 3


Shape = tuple[str | None, ...]
"""Folded words of a name; None for an id."""


class Shaped(NamedTuple):
    shape: Shape
    spelled: tuple[str, ...]  # the segments as sent; ids decoded

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(text for word, text in zip(self.shape, self.spelled, strict=True) if word is None)

    @property
    def parent(self) -> Shaped:
        """Shape of the path without its last segment: the words of the path, with None for each object ID."""
        return Shaped(self.shape[:-1], self.spelled[:-1])


def shapes_of(method: str, target: Target) -> list[Shaped] | None:
    """Return a shape for each interpretation of the request path that the rules must allow.

    A shape contains the words of a path, with None in place of each object ID.

    Return None if, for one of the interpretations, no path pattern of a rule can describe the path. The
    argument `method` must be in capitals.
    """
    found: dict[Shaped, None] = {}
    for reading in target.readings:
        if reading.kind & UNTAKEN or importance_of(reading.kind, method) == "shadow":
            continue
        shaped = [one for name in sorted(reading.names, key=_narrowness) if (one := _shaped(method, name))]
        if not shaped:
            return None
        found[shaped[0]] = None
    return list(found)


def looks_like_id(text: str) -> bool:
    """Return True if the text looks like an object ID, such as a GUID, and not like a resource name.

    Numbers and mail addresses also look like object IDs.
    """
    if _NAME.fullmatch(text) is None:
        return True
    digits = sum(char.isdecimal() for char in text)
    capitals = sum(char.isupper() for char in text)
    if len(text) >= _LONG and digits >= _MANY_DIGITS:
        return True
    return len(text) >= _LONG // 2 and 3 * capitals > len(text) and not text.isupper()


def _narrowness(name: Name) -> tuple[bool, int, tuple[str, ...]]:
    """Return the sort key that orders the possible names of one path.

    The name with the most segments comes first, for example a name with a type cast. A name that contains a
    file path between colons, such as `/root:/folder/file:`, comes last, because its words are names of files.
    """
    return any(word.endswith(":") for word in name.folded), -len(name.folded), name.folded


def _shaped(method: str, name: Name) -> Shaped | None:
    """Return the shape of one interpretation of a path: its words, with None in place of each object ID.

    Return None if no path pattern of a rule can match exactly the paths of this shape.

    The shape has the first two segments of the path (the version and the first resource) always as words,
    never as object IDs.
    """
    if len(name.folded) > MAX_PATTERN_SEGMENTS:
        return None
    shape: list[str | None] = []
    spelled: list[str] = []
    for at, (folded, exact) in enumerate(zip(name.folded, name.exact, strict=True)):
        word = _word(folded, exact)
        is_call = exact is not None and fold(exact) != folded
        last = at == len(name.folded) - 1
        if word is not None and (
            at < _ALWAYS_WORDS or exact is None or is_call or not _is_id(shape[-1], word, method, last=last)
        ):
            shape.append(folded)
            spelled.append(word)
        elif exact is not None and at >= _ALWAYS_WORDS:
            shape.append(None)
            spelled.append(exact)
        else:
            return None
    return Shaped(tuple(shape), tuple(spelled))


@lru_cache(maxsize=8192)
def _word(folded: str, exact: str | None) -> str | None:
    """Return the text by which a rule's path pattern matches a path segment, without call arguments.

    Return None if no word in a rule's path pattern can match the segment.
    """
    written = "" if exact is None else exact.partition("(")[0]
    for spelled in (written if _NAME.fullmatch(written) else folded, folded, exact):
        if spelled and fold(spelled) == folded and _is_a_word(spelled, folded):
            return spelled
    return None


def _is_a_word(text: str, folded: str) -> bool:
    try:
        return any(pattern.segments == (folded,) for pattern in parse_pattern(f"/{text}"))
    except (InvalidPattern, UnicodeError):
        return False


def _is_id(before: str | None, word: str, method: str, *, last: bool) -> bool:
    """Return True if the segment after `before` is an object ID.

    The last segment of a POST request's path may be an action instead of an object ID.
    """
    if word.startswith("$") or fold(word).startswith("microsoft.graph."):
        return False
    if looks_like_id(word) and fold(word) not in KNOWN_RESOURCES:  # names have no significant letter case
        return True
    if before is None or fold(before) not in COLLECTIONS or _FUNCTION.fullmatch(word):
        return False
    # an action, because a POST is not sent to a member of a collection
    return not (last and method == "POST")


def names_function(word: str) -> bool:
    """Return True if a path segment, in its original letter case, looks like a Microsoft Graph function."""
    return _FUNCTION.fullmatch(word) is not None


def is_plural(folded: str) -> bool:
    """Return True if a path segment looks like a plural, and therefore like the name of a collection."""
    return folded in _NAMES_WITH_PLURAL or (folded.endswith("s") and not folded.endswith(("ss", "us", "is")))


def parameter(collection: str | None) -> str:
    name = re.sub(r"[^A-Za-z0-9]", "", collection or "")
    folded = fold(name)
    if folded in _NAMES_WITH_PLURAL:
        return f"{_NAMES_WITH_PLURAL[folded]}-id"
    if folded.endswith("ies"):
        name = name[:-3] + "y"
    elif folded.endswith(("sses", "shes", "ches", "xes")):
        name = name[:-2]
    elif is_plural(folded):
        name = name[:-1]
    else:
        return "id"
    return f"{name}-id" if name[:1].isalpha() else "id"
