"""What one segment of an OData path can mean: a name, a key, a call, a cast, a file's path between colons."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

# Kinds of meanings, as bits.
CERTAIN = 0  # a verdict must hold for it
SHADOW = 1  # unlikely: only a rule that blocks or filters it counts
KEY = 2  # perhaps a key, more likely a call: unlikely where the method can call a function

# Types that paths cast to. A qualified name that is none of these may be an operation as well, and is
# evaluated as both.
_TYPES = """
    administrativeunit aaduserconversationmember androidlobapp androidmanagedappprotection
    androidstoreapp androidcompliancepolicy application approlassignment approleassignment
    attributerulemembers calendar certificatebasedauthconfiguration channel contact contract
    conversationmember countrynamedlocation custommanagedappprotection device directoryaudit
    directoryobject directoryrole directorysetting driveitem educationassignment educationclass
    educationfeedbackresourceoutcome educationuser emailauthenticationmethod endpoint event eventmessage
    eventmessagerequest eventmessageresponse extensionproperty federatedidentitycredential
    fido2authenticationmethod fileassessmentrequest fileattachment group grouplifecyclepolicy
    hoplocation identityprovider identityproviderbase inferenceclassificationoverride
    ioscompliancepolicy ioslobapp iosmanagedappprotection iosstoreapp iosvppapp ipnamedlocation
    itemattachment itemattachmentcontent macoscompliancepolicy macoslobapp mailassessmentrequest
    mailfolder mailsearchfolder managedapp manageddevice managedmobilelobapp message
    microsoftauthenticatorauthenticationmethod mobileapp multivaluelegacyextendedproperty namedlocation
    officegraphinsights opentypeextension openshift orgcontact organization outlookitem
    passwordauthenticationmethod permissiongrantpolicy phoneauthenticationmethod place planner post
    referenceattachment room roomlist serviceprincipal sharepointidentityset signin
    singlevaluelegacyextendedproperty site socialidentityprovider softwareoathauthenticationmethod
    teamsapp teamworktag temporaryaccesspassauthenticationmethod textclassificationrequest
    threatassessmentrequest urlassessmentrequest user useridentity webapp win32lobapp
    windows10compliancepolicy windowshelloforbusinessauthenticationmethod windowsuniversalappx
    workforceintegration workingtimeschedule workspace
"""
_KNOWN_TYPES = frozenset(_TYPES.split())
_KEY_NAMES = frozenset(
    (
        "id",
        "appid",
        "deviceid",
        "externalid",
        "onpremisesimmutableid",
        "roletemplateid",
        "uniquename",
        "userprincipalname",
    )
)
_FUNCTION_NAME = re.compile(
    r"delta|reminderview|calendarview|(?!exportJobs\Z)(?:get|find|filter|search|retrieve|check|validate|verify|is|has|list|export)[A-Z]\w*"
)
_COLLECTION_NAME = re.compile(r".*s|people|children")
_DELTA = "delta"  # the one function without arguments that SDKs call by its qualified name; no type
_CALL = re.compile(r"([A-Za-z_$][\w.$-]*) *\((.*)\)", re.DOTALL)
_BARE_CALL = re.compile(r"[A-Za-z_$][\w.$-]* *\(\)")
_ARGUMENT_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_QUALIFIED = re.compile(r"(?:microsoft\.)?graph\.(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)", re.IGNORECASE)
_OPEN_EXTENSION_ID = re.compile(r"microsoft\.graph\.opentypeextension\.", re.IGNORECASE)
_MAX_OPEN = 8
_MAX_COLONS = 6  # two each for a site, a drive and one to spare
_OPENS_FILE_PATH = frozenset(("items", "sites", "special"))
_EXPANSION: Final = 18  # characters that NFKC makes of one at most (UAX #15 §9.1, of U+FDFA)
_LIGATURE_COST: Final = 60
# Of the general category Cf, and what NFKC_Casefold leaves out (Default_Ignorable_Code_Point), by ranges: one
# pattern finds them in a tenth of the time that a look at each character takes.
INVISIBLE: Final = re.compile(
    "[\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd"
    "\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Characters of which NFKC makes four or more.
_LIGATURE: Final = re.compile(
    "[\u2057\u2152\u2167\u2177\u247d-\u2487\u2a0c\u321d\u321e\u3300-\u33d8\ufdf2-\ufdfc]"
)
_EMPTY_PARENTHESES_REVERSED: Final = re.compile(r"(?:\)\( *)+")


class Part(NamedTuple):
    """A segment of a name. `exact` is None where only a rule's own words may match it, never a wildcard."""

    folded: str
    exact: str | None
    is_key: bool = False  # it came in parentheses, as in `/chats('19:x')`


class Meaning(NamedTuple):
    """One meaning of a segment, under each of its names; a name is no segment, one, or two."""

    kind: int
    names: tuple[tuple[Part, ...], ...]


def by_own_words(meaning: Meaning) -> Meaning:
    """The same, but that no wildcard stands for it."""
    return Meaning(
        meaning.kind,
        tuple(tuple(Part(part.folded, None, part.is_key) for part in name) for name in meaning.names),
    )


class MalformedSegment(ValueError):
    """A segment that can't be read at all."""


class Aliases:
    """What parameter aliases stand for (OData 4.01 part 2 §5.3), and how much of it a path may write out: a
    key names an alias in two characters, as often as the path has room for."""

    __slots__ = ("_room", "_values")

    def __init__(self, values: Mapping[str, str], room: int) -> None:
        self._values = values
        self._room = room

    def written_out(self, name: str) -> str:
        """Raises MalformedSegment."""
        value = self._values.get(name)
        if value is None:
            raise MalformedSegment("a parameter alias without a value")
        self._room -= folded_at_most(value)
        if self._room < 0:
            raise MalformedSegment("parameter aliases that stand for too much")
        return value


NO_ALIASES: Final = Aliases({}, 0)


def fold(text: str) -> str:
    """Resource names that a server could take for one another become equal (NFKC_Casefold, trimmed)."""
    if text.isascii():
        return text.lower().strip(" ")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _visible(folded).strip(" ")


def folded_at_most(text: str) -> int:
    """How long `fold` may make it, told without folding."""
    return len(text) if text.isascii() else _EXPANSION * len(text)


def folding_cost(text: str) -> int:
    """Of `fold`, in characters of ordinary text that is no ASCII; each takes some 40 ns."""
    return 0 if text.isascii() else len(text) + _LIGATURE_COST * ligatures(text)


def ligatures(text: str) -> int:
    """How many characters stand for four or more: no honest text has many, and each is work."""
    return 0 if text.isascii() else len(_LIGATURE.findall(text))


def trimmed(text: str) -> str:
    """A segment less blanks around it, invisible characters, and empty parentheses behind what is no call."""
    text = _visible(text).strip(" ")
    if _BARE_CALL.fullmatch(text) is not None:
        return text
    empty = _EMPTY_PARENTHESES_REVERSED.match(text[::-1])
    return text if empty is None else text[: len(text) - empty.end()]


def _visible(text: str) -> str:
    if text.isascii():
        return text
    return INVISIBLE.sub("", text)


def meanings_of(text: str, aliases: Aliases, *, followed: bool = False) -> tuple[Meaning, ...]:
    """`followed` by a segment that is no option of OData's, as `$count` is."""
    call = _CALL.fullmatch(text) if text.endswith(")") else None
    if call is not None:
        arguments = _split_arguments(call[2])
        if arguments is not None:
            return _call_meanings(call[1], arguments, text, aliases, followed=followed)
    if _is_qualified(text):
        return _qualified_meanings(text)
    literal = unquoted_literal(text)
    if literal is not None:
        return (_plain(text), Meaning(SHADOW, ((Part(fold(literal), literal),),)))
    return (_plain(text),)


def file_path_meanings(text: str, aliases: Aliases) -> tuple[Meaning, ...]:
    """Between the colons of `root:/a (1)/b:` segments name files; what else they could be counts to block."""
    plain = _plain(text)
    others = tuple(
        Meaning(SHADOW, meaning.names) for meaning in meanings_of(text, aliases) if meaning != plain
    )
    files = tuple(tuple([part._replace(is_key=True) for part in name]) for name in plain.names)
    return (Meaning(plain.kind, files), *others)


class ColonForm(NamedTuple):
    """A path with `root:/a/b:` in it under one of its names."""

    texts: list[str]
    files: frozenset[int]  # positions of what names files
    openings: frozenset[int]  # positions of what stands before a colon as it was written, such as `root:`


def colon_forms(segments: Sequence[str]) -> list[ColonForm]:
    """A file found by its path is an item as one found by its id: `root:/a/b:/content` is
    `items/{id}/content`, and so is `items/x:/a/b:/content`."""
    opening = next((at for at, text in enumerate(segments) if _opens_file_path(segments, at, text)), None)
    if opening is None:
        return [ColonForm(list(segments), frozenset(), frozenset())]
    closing = next((at for at in range(opening + 1, len(segments)) if segments[at].endswith(":")), None)
    end = len(segments) if closing is None else closing + 1
    files = [text for text in (*segments[opening + 1 : end - 1], segments[end - 1].removesuffix(":")) if text]
    if end == opening + 1:
        files = []
    base = segments[opening][:-1]
    head = list(segments[:opening])
    if _is_root(base) and fold(head[-1]) not in _OPENS_FILE_PATH:
        item = ["items", "/".join(files)] if files else [base]
    else:
        item = [base] if not files else _item_by_path(base, files)
    written = list(segments[opening:end])
    forms = []
    if sum(text.endswith(":") for text in segments) > _MAX_COLONS:
        raise MalformedSegment("too many paths between colons")
    for tail in colon_forms(segments[end:]):
        at = len(head) + len(written)
        named = [*range(len(head) + 1, at), *_moved(tail.files, at)]
        opened = [opening, *_moved(tail.openings, at)]
        forms.append(ColonForm(head + written + tail.texts, frozenset(named), frozenset(opened)))
        at = len(head) + len(item)
        named = [*([at - 1] if files else []), *_moved(tail.files, at)]
        opened = _moved(tail.openings, at)
        forms.append(ColonForm(head + item + tail.texts, frozenset(named), frozenset(opened)))
    return forms


def _moved(places: Iterable[int], by: int) -> list[int]:
    return [by + each for each in places]


def _item_by_path(base: str, files: Sequence[str]) -> list[str]:
    """`x:/a/b` is one id; with its collection before it in `items('x'):/a/b`."""
    call = _CALL.fullmatch(base)
    arguments = _split_arguments(call[2]) if call is not None else None
    if call is None or not arguments:
        return ["/".join([base + ":", *files])]
    named = (_ARGUMENT_NAME.fullmatch(argument) for argument in arguments)
    values = [
        argument if found is None else found[2] for argument, found in zip(arguments, named, strict=True)
    ]
    key = ",".join(_value(value, NO_ALIASES) for value in values)
    return [call[1], "/".join([f"{key}:", *files])]


def close_parentheses(segments: Sequence[str]) -> list[str]:
    """Segments joined again where a slash stood within a key's or call's parentheses: `search(q='a/b')`."""
    return ["/".join(group) for group in _groups(segments)]


def without_matrix_parameters(segments: Sequence[str]) -> list[str]:
    """`;x=y` cut from the end of each segment (RFC 3986 §3.3), but not out of a key or a call."""
    kept: list[str] = []
    for group in _groups(segments):
        left = len(_before_semicolon("/".join(group)))
        for text in group:
            kept.append(text[:left])
            left -= len(text) + 1
            if left < 0:
                break
    return kept


def _groups(segments: Sequence[str]) -> Iterator[Sequence[str]]:
    """Those together that parentheses hold together."""
    at = attempts = 0
    while at < len(segments):
        end = at + 1
        if "(" in segments[at] and _closing(segments[at : at + 1], 0) is None:
            attempts += 1
            if attempts > _MAX_OPEN:
                raise MalformedSegment("too many open parentheses")
            end = _closing(segments, at) or end
        yield segments[at:end]
        at = end


def _closing(segments: Sequence[str], start: int) -> int | None:
    """The end of the segments in which the parentheses that segment `start` opens are closed."""
    depth, quoted = 0, False
    for at in range(start, len(segments)):
        for number, piece in enumerate(segments[at].split("'")):
            if number and depth:
                quoted = not quoted
            if not quoted:
                depth += piece.count("(") - piece.count(")")
        if depth <= 0 and not quoted:
            return at + 1
    return None


def _before_semicolon(text: str) -> str:
    """What stands before the first semicolon outside of parentheses."""
    if ";" not in text:
        return text
    depth, quoted = 0, False
    for at, char in enumerate(text):
        if char == "'" and depth:
            quoted = not quoted
        elif quoted:
            continue
        elif char == "(":
            depth += 1
        elif char == ")":
            depth = max(0, depth - 1)
        elif char == ";" and not depth:
            return text[:at]
    return text


def unquoted_literal(text: str) -> str | None:
    """The value of an OData string literal (`'O''Brien'`), None where it is none."""
    if len(text) < 2 or text[0] != "'" or text[-1] != "'":
        return None
    inner = text[1:-1]
    if "'" in inner.replace("''", ""):
        return None
    return inner.replace("''", "'")


def qualified_operation(folded: str) -> str | None:
    """The plain name of `microsoft.graph.name` where that may be an operation; None for a known type."""
    qualified = _QUALIFIED.fullmatch(folded)
    if qualified is None or fold(qualified[1]) in _KNOWN_TYPES:
        return None
    return fold(qualified[1])


def _plain(text: str) -> Meaning:
    return Meaning(CERTAIN, ((Part(fold(text), text),),))


def _is_qualified(text: str) -> bool:
    return _QUALIFIED.fullmatch(text) is not None and _OPEN_EXTENSION_ID.match(text) is None


def _literal(text: str) -> tuple[Part, ...]:
    folded = fold(text)
    return (Part("microsoft." + folded if folded.startswith("graph.") else folded, None),)


def _qualified_meanings(text: str) -> tuple[Meaning, ...]:
    cast = Meaning(CERTAIN, ((), _literal(text)))
    operation = text.rpartition(".")[2]
    if fold(operation) in _KNOWN_TYPES:
        return (cast,)
    return (cast, Meaning(CERTAIN, ((Part(fold(operation), operation),), _literal(text))))


def _call_meanings(
    name: str, arguments: list[str], text: str, aliases: Aliases, *, followed: bool
) -> tuple[Meaning, ...]:
    named = [_ARGUMENT_NAME.fullmatch(argument) for argument in arguments]
    pairs = [(found[1], found[2]) for found in named if found is not None]
    qualified = _is_qualified(name)
    plain_name = name.rpartition(".")[2] if qualified else name
    name_part = Part(fold(plain_name), plain_name)
    if not arguments:
        if not qualified:
            return (_plain(name),)
        if name_part.folded == _DELTA:
            return (Meaning(CERTAIN, ((name_part,), _literal(name))),)
        return _qualified_meanings(name)  # a cast may have empty parentheses too
    if len(pairs) < len(arguments):
        key = _key_part([_value(argument, aliases) for argument in arguments])
        meanings = [Meaning(CERTAIN, ((name_part, key),))]
        if qualified:
            meanings.append(Meaning(CERTAIN, ((key,), (*_literal(name), key))))
        return tuple(meanings)
    values = [_value(value, aliases) for _, value in pairs]
    key = _key_part(values)
    normalised = ",".join(
        sorted(f"{argument.lower()}={value}" for (argument, _), value in zip(pairs, values, strict=True))
    )
    call_names = ((Part(name_part.folded, text),), (Part(fold(f"{plain_name}({normalised})"), None),))
    as_key = ((name_part, key), *(((key,),) if qualified else ()))
    if not _FUNCTION_NAME.fullmatch(plain_name):
        if len(pairs) == 1 and pairs[0][0].lower() in _KEY_NAMES:
            return (Meaning(CERTAIN, as_key),)
        if followed and _COLLECTION_NAME.fullmatch(name_part.folded):
            # Nothing follows the collections that functions give: this is a key that we don't know.
            return (Meaning(CERTAIN, as_key), Meaning(SHADOW, call_names))
    return (Meaning(CERTAIN, call_names), Meaning(KEY, as_key))


def _key_part(values: Sequence[str]) -> Part:
    key = ",".join(values)
    return Part(fold(key), key, is_key=True)


def _value(text: str, aliases: Aliases) -> str:
    text = text.strip()
    if text.startswith("@"):
        text = aliases.written_out(text[1:].lower()).strip()
    literal = unquoted_literal(text)
    return text if literal is None else literal


def _split_arguments(inner: str) -> list[str] | None:
    """Arguments between the commas of the outer level; None where the text isn't one pair of parentheses."""
    if not inner.strip():
        return []
    arguments, start, depth, quoted = [], 0, 0, False
    for at, char in enumerate(inner):
        if char == "'":
            quoted = not quoted
        elif quoted:
            continue
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth < 0:
                return None
        elif char == "," and depth == 0:
            arguments.append(inner[start:at])
            start = at + 1
    if quoted or depth:
        return None
    return [*arguments, inner[start:]]


def _is_root(text: str) -> bool:
    return fold(text) in ("root", "root()")


def _opens_file_path(segments: Sequence[str], at: int, text: str) -> bool:
    if not text.endswith(":") or at == 0:
        return False
    before = segments[at - 1]
    return (
        _is_root(text[:-1])
        or fold(before) in _OPENS_FILE_PATH
        or (fold(text.partition("(")[0]) in _OPENS_FILE_PATH and text.endswith("):"))
    )
