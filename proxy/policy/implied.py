"""Find the requests that a request implies by expanding, naming, binding, creating, subscribing or searching.

Rules evaluate each implied request like a request that the client sends itself. The path alone may not show
if an address is a collection or a single object. An implied request then has several possible addresses. For
example, the request `GET /groups?$expand=members` implies a read of `/groups/{any}/members`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from itertools import product
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from proxy.policy.canonical import (
    ANY_KEY,
    ANY_NAME,
    TARGET_CHARS,
    MalformedTarget,
    Name,
    Reading,
    Target,
    canonicalise,
    fully_decoded,
)
from proxy.policy.content_paths import (
    CONTENT,
    CONTENT_WORDS,
    ITEMS,
    Stem,
    addresses_within,
    stems_of,
)
from proxy.policy.expansions import Expansion, expansions_of, property_place
from proxy.policy.facts import MalformedBody, RequestFacts
from proxy.policy.odata import NO_ALIASES, fold, meanings_of
from proxy.policy.query_paths import Named, Unresolved

MAX_IMPLIED: Final = 300  # evaluations of implied requests for one request
MAX_NAMES: Final = 4096  # names of one implied request in all interpretations
MAX_MEMBERS: Final = 400  # members of a body that name relations
_MAX_DEPTH: Final = 8  # levels of nested objects in a body

WRITES: Final = frozenset(("POST", "PUT", "PATCH"))
# A body of bytes binds no relation.
_STREAMS: Final = frozenset(("content", "$value"))
_BYTES: Final = re.compile(
    rb"\s*(?:multipart|image|audio|video)/|\s*text/(?:html|csv|calendar)|"
    rb"\s*application/(?:octet-stream|pdf|zip|xhtml|vnd\.(?:ms-|openxml))",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[^\W\d]\w*")
_NAMING: Final = ("select", "filter", "orderby", "apply", "compute")
_LONGEST_ADDRESS: Final = 8192
_HOST: Final = re.compile(r"[/\\]{2}|[A-Za-z][\w+.-]*:[/\\]")  # a host, with or without a scheme before it


class Searched(NamedTuple):
    """Words in path patterns that identify the rules for one type of a Microsoft Search request.

    A path pattern belongs to the searched type if its last literal segment is in `words`. If `among` is not
    empty, the pattern must also have a segment in `among`. A pattern that ends with `**` belongs to the type
    if a segment in `holders` may precede the `**`, with or without an object ID. A pattern with a segment in
    `apart` does not belong to the type.
    """

    words: frozenset[str]
    among: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    holders: frozenset[str] = frozenset()


_CHATS: Final = frozenset(("chats", "channels", "teams"))
_FILES: Final = frozenset(("drive", "drives", "root"))
_OWNERS: Final = frozenset(("users", "me"))
_OWNERS_AND_GROUPS: Final = _OWNERS | {"groups"}
_SITES: Final = _OWNERS_AND_GROUPS | {"sites"}
# Microsoft Graph's entityType enumeration.
SEARCHED: Final[Mapping[str, Searched]] = {
    "message": Searched(
        frozenset(("messages",)), apart=_CHATS, holders=_OWNERS | {"mailfolders", "childfolders"}
    ),
    "event": Searched(
        frozenset(("events", "calendarview")),
        holders=_OWNERS_AND_GROUPS | {"calendar", "calendars", "calendargroups"},
    ),
    "drive": Searched(frozenset(("drives", "drive")), holders=_SITES),
    "driveitem": Searched(
        frozenset(("items", "content", "children", "root")), among=_FILES, holders=_SITES | _FILES
    ),
    "list": Searched(frozenset(("lists",)), holders=frozenset(("sites", "groups"))),
    "listitem": Searched(
        frozenset(("items", "fields")),
        among=frozenset(("lists", "list")),
        holders=_SITES | {"lists", "list"},
    ),
    "site": Searched(frozenset(("sites",)), holders=frozenset(("groups",))),
    "chatmessage": Searched(frozenset(("messages", "replies")), among=_CHATS, holders=_OWNERS | _CHATS),
    "person": Searched(frozenset(("people", "users", "contacts")), holders=_OWNERS),
    "externalitem": Searched(
        frozenset(("items",)),
        among=frozenset(("external",)),
        holders=frozenset(("external", "connections")),
    ),
    "acronym": Searched(frozenset(("acronyms",)), holders=frozenset(("search",))),
    "bookmark": Searched(frozenset(("bookmarks",)), holders=frozenset(("search",))),
    "qna": Searched(frozenset(("qnas",)), holders=frozenset(("search",))),
}
# Rules for the content of items in any drive.
CONTENT_OF_ANY_DRIVE: Final = Searched(frozenset((CONTENT,)), among=_FILES)
FOUND_AT: Final = "hitsContainers.hits.resource"
# Properties that reveal found objects: a summary quotes them, and an aggregation lists their values.
TOLD_OF_FOUND: Final = ("hitsContainers.hits.summary", "hitsContainers.aggregations")


class Changes(NamedTuple):
    """Relations whose changes a delta query returns (Microsoft's "Use delta query")."""

    relations: tuple[str, ...]
    on_request: bool = False  # True if only `$select` makes the delta return them


_BROUGHT_BY_DELTA: Final[Mapping[str, Changes]] = {
    "groups": Changes(("members", "owners")),
    "administrativeunits": Changes(("members",)),
    "directoryroles": Changes(("members",)),
    "users": Changes(("manager",), on_request=True),
}
_DELTAS: Final = frozenset([(word,) for word in _BROUGHT_BY_DELTA])
_SUBSCRIPTIONS: Final = ("subscriptions",)
_SEARCH: Final = ("search", "query")
# Words of a path on which the implied requests depend.
TELLING_WORDS: Final = (
    frozenset((*_BROUGHT_BY_DELTA, *_SUBSCRIPTIONS, *_SEARCH, *_STREAMS, "delta")) | CONTENT_WORDS
)
_CONTINUES: Final = ("skiptoken", "deltatoken")


class Effect(Enum):
    """Effect that a filter on an implied request has on the request that implies it."""

    AT_PLACE = "hides properties at the place of the response"
    HIDES = "hides the whole place of the response, like a block"
    NOTHING = "the response contains nothing of it"
    CANNOT = "cannot be filtered, because the data is pushed elsewhere or transformed"
    PROBE = "only a query guard counts"
    ADDRESSES = "hides addresses that need no token"


_EFFECT_OF_NAMING: Final = {"select": Effect.AT_PLACE, "apply": Effect.CANNOT}


class Scope(Enum):
    """The set of rules that evaluate an implied request (a request that another request causes)."""

    ALL = "every rule, and the default"
    RULES = "every rule, because only an unlikely interpretation has the request"
    PROBED = "every rule, for its query guard"
    SPELLED_OUT = "rules that spell out the name"
    OPENED = "rules that allow the content, and rules that spell it out"


class Suffix(NamedTuple):
    """Path segments to append to the path of a request, to get the path of a request that it implies.

    The field `names` has one tuple of segments for each alternative.
    """

    names: tuple[tuple[str, ...], ...]
    stem: Stem = Stem.WHOLE  # part of the address that precedes them


class Way(NamedTuple):
    """A possible method and target of an implied request (a request that another request causes)."""

    method: str
    target: Target
    base: Target | None  # address that `suffix` is added to
    suffix: Suffix | None
    searched: str = ""  # folded name of the type that a search requests
    of_any_drive: bool = False


class Implied(NamedTuple):
    """A request that another request causes, for example by `$expand`, with all its possible targets."""

    cause: str  # source of the request, such as $expand or members@odata.bind
    ways: tuple[Way, ...]
    effect: Effect
    scope: Scope
    place: str  # property path in the response
    document: Any = None  # compiled code cannot annotate a NamedTuple with `object`
    addresses: tuple[str, ...] = ()  # property paths to hide


class Opening(NamedTuple):
    """Content that a response makes accessible without a token, if a rule spells out the content's path."""

    cause: str
    method: str
    suffixes: tuple[Suffix, ...]
    of_any_drive: bool
    effect: Effect


class Below:
    """Names of path segments that follow the path of a request in the path patterns of rules."""

    def __init__(self, words: Set[str] = frozenset(), stricter_words: Set[str] = frozenset()) -> None:
        self.words = words  # words that follow the address in any rule
        self.stricter_words = stricter_words  # words that lead to a rule that blocks or filters

    def is_relation(self, word: str) -> bool:
        """Return True if an object under the given member name in a request body is a separate entity."""
        return word in self.words

    def may_be_named_in(self, body: bytes) -> bool:
        """Return False if the request body certainly does not contain the name of a relation."""
        return may_imply(body, self.words)


def query_may_imply(query: str, words: Set[str]) -> bool:
    """Return False if a query certainly expands no relation and contains none of the given words.

    `query_may_imply` does not parse the query options.
    """
    # Fast path for common queries, in a third of the time (bench/test_request.py): `$expand` needs an x.
    if not words and "x" not in query and "X" not in query and "%" not in query:
        return False
    text = query.lower()
    if "%" in text:
        text = fully_decoded(text).lower()
    if "expand" in text or "\\" in text or not text.isascii():
        return True
    return bool(words) and not words.isdisjoint(_WORD.findall(text))


def implied_by_query(target: Target, below: Below) -> Iterator[Implied]:
    """Yield the requests that the query of a request implies.

    Raise MalformedTarget if the relations that the query expands are not certain.
    """
    expanded = target.options.get("expand")
    if expanded is not None:
        taken = target.as_taken
        likely = expanded if "expand" in taken.doubtful else taken.options.get("expand", ())
        for text in dict.fromkeys(expanded):
            if text[:1] == "@" and text.lower() in target.options:
                continue  # an alias, which is also written out
            scope = Scope.ALL if text in likely else Scope.RULES
            for expansion in expansions_of(text):
                yield from _expanded(target, expansion, scope)
    if below.stricter_words:
        yield from _named(target, below.stricter_words)
    if target.may_end_in("delta"):
        yield from _brought_by_delta(target)


def _expanded(target: Target, expansion: Expansion, scope: Scope) -> Iterator[Implied]:
    place = property_place(expansion.path)
    names = _names_of(expansion.path)
    options = dict(expansion.options)
    for level in range(1, expansion.levels + 1):
        suffixes = tuple(dict.fromkeys([_repeated(names, level, ANY_KEY), _repeated(names, level, None)]))
        yield _implied_below(
            target,
            "$expand",
            ("GET",),
            suffixes,
            ".".join([place] * level) if place else "",
            Effect.AT_PLACE,
            scope=scope,
            options=options,
        )


def _repeated(names: tuple[tuple[str, ...], ...], level: int, key: str | None) -> tuple[tuple[str, ...], ...]:
    between = () if key is None else (key,)
    return tuple([(name + between) * (level - 1) + name for name in names])


def _names_of(path: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return all possible names of a path, because a type cast in the path may be left out."""
    parts: list[list[tuple[str, ...]]] = []
    for segment in path:
        if segment == "*":
            parts.append([(ANY_NAME,)])
        else:
            meaning = meanings_of(segment, NO_ALIASES)[0]
            parts.append([tuple([part.folded for part in name]) for name in meaning.names])
    return tuple([tuple([word for name in choice for word in name]) for choice in product(*parts)])


def _implied_below(
    target: Target,
    cause: str,
    methods: tuple[str, ...],
    suffixes: Iterable[tuple[tuple[str, ...], ...]],
    place: str,
    effect: Effect,
    *,
    scope: Scope = Scope.ALL,
    options: Mapping[str, tuple[str, ...]] | None = None,
    document: object = None,
) -> Implied:
    """Return a request that the target implies, with the paths `target/suffix` and `target/{id}/suffix`.

    Both paths are possible, because the path of the target alone does not show if the target is a collection
    of objects.
    """
    known = options or {}
    ways: list[Way] = []
    stem = Stem.BEFORE_DELTA if target.may_end_in("delta") else Stem.WHOLE
    for names in suffixes:
        for suffix in (Suffix(names, stem), Suffix(tuple([(ANY_KEY, *name) for name in names]), stem)):
            below = _below(target, suffix, known)
            ways += [Way(method, below, target, suffix) for method in methods]
    return Implied(cause, tuple(ways), effect, scope, place, document)


def _below(target: Target, suffix: Suffix, options: Mapping[str, tuple[str, ...]]) -> Target:
    path = "/".join([target.path.rstrip("/"), *map(_shown, suffix.names[0])])
    return Target.implied(path, readings_below(target.readings, suffix), options, target.taken)


def readings_below(readings: Iterable[Reading], suffix: Suffix) -> tuple[Reading, ...]:
    """Append the segments in `suffix` to each interpretation of an address, and return the results.

    Raise MalformedTarget if all interpretations together would have more than MAX_NAMES extended resource
    names.
    """
    readings = tuple(readings)
    if sum([len(reading.names) for reading in readings]) * len(suffix.names) > MAX_NAMES:
        raise MalformedTarget(
            "the additional requests that this request implies, such as by $expand, have too many paths"
        )
    return tuple(
        [
            Reading(
                reading.kind,
                tuple(
                    [
                        _name_below(name, words)
                        for each in reading.names
                        for name in stems_of(each, suffix.stem)
                        for words in suffix.names
                    ]
                ),
                reading.changed_from,
            )
            for reading in readings
        ]
    )


def _shown(word: str) -> str:
    return {ANY_KEY: "{any}", ANY_NAME: "*"}.get(word, word)


def _name_below(name: Name, added: tuple[str, ...]) -> Name:
    size = len(name.folded)
    relations = tuple([size + at for at, word in enumerate(added) if word != ANY_KEY])
    return Name(name.folded + added, name.exact + added, name.keys, relations)


def _named(target: Target, words: Set[str]) -> Iterator[Implied]:
    """Find, in query options, the words that a rule's path pattern spells out.

    A query option that is too long is treated as if it contained every word that a rule's path spells out.
    """
    for option in _NAMING:
        for text in target.options.get(option, ()):
            lowered = text.lower()
            if text.isascii() and "\\" not in text and words.isdisjoint(_WORD.findall(lowered)):
                continue
            for path in _paths_in(option, text, words):
                yield _implied_below(
                    target,
                    f"${option}",
                    ("GET",),
                    (((path,)),),
                    ".".join(path),
                    _EFFECT_OF_NAMING.get(option, Effect.NOTHING),
                    scope=Scope.SPELLED_OUT,
                )
                for end in range(1, len(path)):
                    yield _probe(target, f"${option}", path[:end], path[end:])


def _probe(target: Target, cause: str, relation: tuple[str, ...], rest: tuple[str, ...]) -> Implied:
    """Return a read of the first relation in a property path, as a request that the target implies.

    The argument `rest` is the part of the property path after the relation.

    The query guards of filters evaluate the implied read that `_probe` returns.
    """
    return _implied_below(
        target,
        cause,
        ("GET",),
        (((relation,)),),
        "",
        Effect.PROBE,
        scope=Scope.PROBED,
        options={"select": ("/".join(rest),)},
    )


def _paths_in(option: str, text: str, words: Set[str]) -> list[tuple[str, ...]]:
    named = Named()
    try:
        named.add(option, text)
    except Unresolved:
        return [(word,) for word in sorted(words) if word in fold(text)]
    found = {path for path in named.paths if path[0] in words}
    found.update((word,) for word in (named.loose | named.homonyms) if word in words)
    return sorted(found)


def brings_relations(name: Name) -> bool:
    """Return True if a delta query returns relations that the query does not name."""
    return name.folded[-1:] == ("delta",) and name.folded[-2:-1] in _DELTAS


def _brought_by_delta(target: Target) -> Iterator[Implied]:
    """Yield a read of each relation, such as `members`, whose changes a delta query may return.

    The options `$skiptoken` and `$deltatoken` do not show which relations a delta query returns. So the proxy
    removes from the response of a delta query all relations that a rule refuses.
    """
    options = target.options
    continues = any(name in options for name in _CONTINUES)
    names = [name for text in options.get("select", ()) for name in text.split(",") if name.strip()]
    wanted = {fold(name.rpartition("/")[2].partition("@")[0]) for name in names}
    for collection, changes in _BROUGHT_BY_DELTA.items():
        if not any(name.folded[-2:-1] == (collection,) for each in target.readings for name in each.names):
            continue
        for relation in changes.relations:
            asked = relation in wanted or "*" in wanted or not (wanted or changes.on_request)
            if continues or asked:
                yield _implied_below(
                    target,
                    f"{relation}@delta",
                    ("GET",),
                    (((relation,),),),
                    relation,
                    Effect.HIDES if continues else Effect.AT_PLACE,
                    scope=Scope.RULES if changes.on_request and not asked else Scope.ALL,
                )


# Implied reads of content

OPENED_ITEM: Final = (
    Suffix(((CONTENT,),), Stem.ITEM),
    Suffix(((ANY_KEY, CONTENT),), Stem.ITEM),
    Suffix(((ITEMS, ANY_KEY, CONTENT),), Stem.DRIVE),
)


def implied_by_addresses(target: Target, openings: Sequence[Opening]) -> Iterator[Implied]:
    """Return implied requests for content that anyone with a URL from the response can open."""
    names = [name for reading in target.readings for name in reading.names]
    for opening in openings:
        ways: list[Way] = []
        for suffix in opening.suffixes:
            readings = readings_below(target.readings, suffix)
            opened = [name for reading in readings for name in reading.names]
            if opened:
                content = Target.implied(_path_of(opened), readings, {}, target.taken)
                ways.append(Way(opening.method, content, target, suffix))
        if opening.of_any_drive:
            content = Target.implied("/drives/{any}/items/{any}/content", (), {}, target.taken)
            ways.append(Way(opening.method, content, None, None, of_any_drive=True))
        if ways:
            yield Implied(
                opening.cause,
                tuple(ways),
                opening.effect,
                Scope.OPENED,
                "",
                None,
                addresses_within(names),
            )


def _path_of(names: Sequence[Name]) -> str:
    """Return the shortest of a resource's names as a path that is shown to people."""
    shortest = min(names, key=lambda name: len(name.folded))
    words = zip(shortest.folded, shortest.exact, strict=True)
    return "/" + "/".join([_shown(folded if exact is None else exact) for folded, exact in words])


# Implied requests of bodies


def subscribes(name: Name) -> bool:
    return name.folded[1:] == _SUBSCRIPTIONS


def searches(name: Name) -> bool:
    return name.folded[1:] == _SEARCH


def is_stream(name: Name) -> bool:
    """Return True if a body written to the path is raw stream content, without JSON properties."""
    return bool(name.folded) and name.folded[-1] in _STREAMS


def holds_bytes(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if a request body of the given media type is certainly not an entity."""
    types = [value for name, value in headers if name.lower() == b"content-type"]
    return len(types) == 1 and _BYTES.match(types[0]) is not None and b"," not in types[0]


def says_json(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and b"json" in value.lower() for name, value in headers)


def may_imply(body: bytes, words: Set[str]) -> bool:
    """Return False if the request body certainly does not name a relation.

    `may_imply` does not parse the request body.
    """
    lowered = body.lower()
    if b"\\u" in lowered or b"odata.bind" in lowered or b"@bind" in lowered or b"@delta" in lowered:
        return True
    if b'odata.id"' in lowered or b'"@id"' in lowered or not lowered.isascii():
        return True
    if b"\0" in lowered:  # UTF-16 or UTF-32
        return True
    text = lowered.decode("ascii")
    return any(word in text for word in words)


def implied_by_members(request: RequestFacts, below: Below) -> Iterator[Implied]:
    """Yield a further request to evaluate for each relation whose objects the body links or creates.

    Raise MalformedBody.
    """
    members = _Members(request, below)
    for each in _entities_in(request.document):
        yield from members.of(each, (), 0)


def _entities_in(document: object) -> list[dict[str, list[object]]]:
    """Return the entity in a request body, or each entity of a list in the body (OData JSON 4.01 §15)."""
    found = document if isinstance(document, list) else [document]
    if isinstance(document, dict):
        for value in document.get("value", ()):
            if isinstance(value, list):
                found += value
    return [each for each in found if isinstance(each, dict)]


class _Members:
    """One pass that finds the implied requests in the objects of a request body."""

    __slots__ = ("_below", "_left", "_request")

    def __init__(self, request: RequestFacts, below: Below) -> None:
        self._request = request
        self._below = below
        self._left = MAX_MEMBERS

    def of(self, members: Mapping[str, list[object]], path: tuple[str, ...], depth: int) -> Iterator[Implied]:
        if depth > _MAX_DEPTH:
            return
        for name, values in members.items():
            base, mark, annotation = name.partition("@")
            if not path and not mark and base in self._below.stricter_words:
                yield self._written(name, base)
            for value in values:
                if mark and base and annotation in ("odata.bind", "bind"):
                    yield from self._bound((*path, base), value, name)
                elif isinstance(value, dict | list) and (not mark or annotation.endswith("delta")):
                    yield from self._within((*path, base), value, name, depth, always=bool(mark))

    def _written(self, name: str, member: str) -> Implied:
        """Return the implied write of a property: the request that writes to the property's own path."""
        method = self._request.method.upper()
        return _implied_below(
            self._request.target,
            name,
            (method,),
            (((member,),),),
            "",
            Effect.NOTHING,
            scope=Scope.SPELLED_OUT,
        )

    def _bound(self, path: tuple[str, ...], value: object, name: str) -> Iterator[Implied]:
        methods = ("POST",) if isinstance(value, list) else ("PUT", "POST")
        each = value if isinstance(value, list) else [value]
        for one in each or [None]:
            yield from self._implied(name, methods, (*path, "$ref"), {"@odata.id": [one]})

    def _within(
        self, path: tuple[str, ...], value: object, name: str, depth: int, *, always: bool
    ) -> Iterator[Implied]:
        """Yield the implied requests that create or change objects within a request body."""
        each = value if isinstance(value, list) else [value]
        method = "POST" if isinstance(value, list) else self._request.method.upper()
        for one in each:
            if not isinstance(one, dict):
                continue
            if "@odata.id" in one or "@id" in one:
                methods = ("POST",) if isinstance(value, list) else ("PUT", "POST")
                yield from self._implied(name, methods, (*path, "$ref"), one)
            elif always or (not path[1:] and self._below.is_relation(path[0])):
                # this request in turn implies what is within the object
                yield from self._implied(name, (method,), path, one)
            else:
                yield from self.of(one, path, depth + 1)

    def _implied(
        self, name: str, methods: tuple[str, ...], path: tuple[str, ...], document: object
    ) -> Iterator[Implied]:
        self._left -= 1
        if self._left < 0:
            raise MalformedBody("the request body names too many relations")
        target = self._request.target
        yield _implied_below(target, name, methods, (((path,)),), "", Effect.NOTHING, document=document)


def implied_by_subscription(request: RequestFacts) -> Iterator[Implied]:
    """Yield the reads of resources that a new change-notification subscription implies.

    Raise MalformedBody or MalformedTarget if the subscribed resource cannot be evaluated.
    """
    pushes = any(value not in (False, None, "false") for value in request.values(("includeresourcedata",)))
    for value in request.values(("resource",)):
        if not isinstance(value, str):
            continue
        way = Way("GET", canonicalise(_address(value, request.target), request.target.taken), None, None)
        yield Implied("resource", (way,), Effect.CANNOT if pushes else Effect.NOTHING, Scope.ALL, "")


def _address(resource: str, target: Target) -> str:
    text = resource.strip()
    if len(text) > _LONGEST_ADDRESS:
        raise MalformedBody("`resource` of the subscription is too long")
    try:
        address = quote(text.lstrip("/"), safe=TARGET_CHARS)
    except UnicodeEncodeError:
        raise MalformedBody(
            "`resource` of the subscription contains a lone surrogate (half of a UTF-16 pair)"
        ) from None
    if _HOST.match(fully_decoded(text)):
        raise MalformedBody(
            "`resource` of the subscription is an absolute address; write it without the host"
        )
    version = target.readings[0].names[0].folded[0]
    if fully_decoded(address).lower().startswith((f"{version}/", "v1.0/", "beta/")):
        return f"/{address}"
    return f"/{version}/{address}"


def implied_by_search(request: RequestFacts) -> Iterator[Implied]:
    """Yield a read of each type (such as `message`) that a Microsoft Search request names.

    Raise MalformedBody if an item of `entityTypes` is not the name of a type.
    """
    for value in request.values(("requests", "entitytypes")):
        searched = fold(value) if isinstance(value, str) else ""
        if _WORD.fullmatch(searched):
            way = Way("GET", request.target, None, None, searched)
            yield Implied(f"entityTypes {value}", (way,), Effect.AT_PLACE, Scope.SPELLED_OUT, FOUND_AT)
        elif value is not None:
            raise MalformedBody("an item of `entityTypes` in the search is not the name of a type")
