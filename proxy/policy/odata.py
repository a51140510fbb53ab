"""Interpretations of one segment of an OData path: a name, a key, a call, a cast, or the path of a file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

# Kinds of interpretations, as bits.
CERTAIN = 0  # a verdict must hold for it
SHADOW = 1  # unlikely: counts only for a rule that blocks or filters it
KEY = 2  # possibly a key, but more likely a call: unlikely if the method can call a function

# Types that paths cast to. Any other qualified name may be an operation as well, and is evaluated as both.
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
_DELTA = "delta"  # the only function without arguments that SDKs call by its qualified name; not a type
_CALL = re.compile(r"([A-Za-z_$][\w.$-]*) *\((.*)\)", re.DOTALL)
_BARE_CALL = re.compile(r"[A-Za-z_$][\w.$-]* *\(\)")
_ARGUMENT_NAME = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)
_QUALIFIED = re.compile(r"(?:microsoft\.)?graph\.(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)", re.IGNORECASE)
_OPEN_EXTENSION_ID = re.compile(r"microsoft\.graph\.opentypeextension\.", re.IGNORECASE)
_MAX_OPEN = 8
_MAX_COLONS = 6  # colons: two for a site, two for a drive and two in reserve
_OPENS_FILE_PATH = frozenset(("items", "sites", "special"))
_EXPANSION: Final = 18  # highest number of characters that NFKC makes of one (UAX #15 §9.1, for U+FDFA)
_LIGATURE_COST: Final = 60
# Characters of the general category Cf, and those that NFKC_Casefold drops (Default_Ignorable_Code_Point), as
# ranges. One pattern finds them in a tenth of the time of a test of each character.
INVISIBLE: Final = re.compile(
    "[\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000110bd"
    "\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Characters that NFKC expands to four or more.
_LIGATURE: Final = re.compile(
    "[\u2057\u2152\u2167\u2177\u247d-\u2487\u2a0c\u321d\u321e\u3300-\u33d8\ufdf2-\ufdfc]"
)
_EMPTY_PARENTHESES_REVERSED: Final = re.compile(r"(?:\)\( *)+")


class Part(NamedTuple):
    """A segment of a path, in the forms that rules compare.

    If `exact` is None, no wildcard in a rule matches the path segment. Only the literal segments of rules can
    match this path segment.
    """

    folded: str
    exact: str | None
    is_key: bool = False  # True for a key in parentheses, as in `/chats('19:x')`


class Meaning(NamedTuple):
    """One interpretation of a path segment, with the names of the segment in this interpretation.

    Each name consists of zero, one or two parts. For example, the name of `chats('19:x')` has a part for
    `chats` and a part for the key.
    """

    kind: int
    names: tuple[tuple[Part, ...], ...]


def by_own_words(meaning: Meaning) -> Meaning:
    """Return the interpretation of a path segment in a form that no wildcard of a rule matches."""
    return Meaning(
        meaning.kind,
        tuple(tuple(Part(part.folded, None, part.is_key) for part in name) for name in meaning.names),
    )


class MalformedSegment(ValueError):
    """The segment of an OData path is malformed and cannot be parsed."""


class Aliases:
    """Values of parameter aliases (OData 4.01 part 2 §5.3), with a limit for the text inserted into a path.

    An alias of two characters can stand for a long object ID. Without a limit for inserted text, a short path
    could repeat an alias and so insert a long value many times.
    """

    __slots__ = ("_room", "_values")

    def __init__(self, values: Mapping[str, str], room: int) -> None:
        self._values = values
        self._room = room

    def written_out(self, name: str) -> str:
        """Return the value that a parameter alias stands for.

        Raise MalformedSegment if the alias has no value, or if all inserted values exceed the limit.
        """
        value = self._values.get(name)
        if value is None:
            raise MalformedSegment("a parameter alias in the path has no value")
        self._room -= folded_at_most(value)
        if self._room < 0:
            raise MalformedSegment("parameter aliases in the query expand to too much text")
        return value


NO_ALIASES: Final = Aliases({}, 0)


def fold(text: str) -> str:
    """Normalise a name (NFKC_Casefold, trimmed).

    Names that a server may treat as the same name become equal.
    """
    if text.isascii():
        return text.lower().strip(" ")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _visible(folded).strip(" ")


def folded_at_most(text: str) -> int:
    """Return the maximum possible length of the folded text, without folding it."""
    return len(text) if text.isascii() else _EXPANSION * len(text)


def folding_cost(text: str) -> int:
    """Return the cost of case folding for a text: a number that grows with its characters outside ASCII.

    One unit of this cost stands for about 40 ns of processor time.
    """
    return 0 if text.isascii() else len(text) + _LIGATURE_COST * ligatures(text)


def ligatures(text: str) -> int:
    """Return how many characters of the text become four or more characters when the text is folded.

    In ordinary text, few characters expand when they are folded. Case folding takes additional time for each
    character that becomes several characters.
    """
    return 0 if text.isascii() else len(_LIGATURE.findall(text))


def trimmed(text: str) -> str:
    """Remove invisible characters and outer spaces from a path segment, and remove `()` at its end.

    Keep the empty parentheses of a function call, such as `delta()`.
    """
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
    """Return the interpretations of a path segment.

    `followed` is True if a further path segment follows, other than an OData option such as `$count`.
    """
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
    """Return the interpretations of a segment between the colons of `root:/a (1)/b:`, which is a file name.

    Interpretations in which the segment is not a file name are compared only with rules that block or filter.
    """
    plain = _plain(text)
    others = tuple(
        Meaning(SHADOW, meaning.names) for meaning in meanings_of(text, aliases) if meaning != plain
    )
    files = tuple(tuple([part._replace(is_key=True) for part in name]) for name in plain.names)
    return (Meaning(plain.kind, files), *others)


class ColonForm(NamedTuple):
    """One form of a path that contains a file path between colons, such as `root:/a/b:`."""

    texts: list[str]
    files: frozenset[int]  # positions of segments that name files
    openings: frozenset[int]  # positions of segments before a colon as they were written, such as `root:`


def colon_forms(segments: Sequence[str]) -> list[ColonForm]:
    """Return each form in which a rule can name a path, if the path contains a file path between colons.

    An example of a path with a file path between colons is `/root:/a/b:/content`.

    Rules treat a drive item addressed by its path like a drive item addressed by its ID. For example, rules
    treat `root:/a/b:/content` and `items/x:/a/b:/content` like `items/{id}/content`.
    """
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
        raise MalformedSegment("the path has too many parts between colons")
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
    """Return the path segments that address a drive item by its file path.

    Microsoft Graph treats the address `x:/a/b` as one ID. In the address `items('x'):/a/b`, the collection
    name `items` precedes the ID.
    """
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
    """Join the path segments that a slash within a key or call has split, such as `search(q='a/b')`."""
    return ["/".join(group) for group in _groups(segments)]


def without_matrix_parameters(segments: Sequence[str]) -> list[str]:
    """Remove `;x=y` from the end of each path segment (RFC 3986 §3.3), except inside a key or a call."""
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
    """Yield the path segments in groups of one or more segments.

    If parentheses span several segments, these segments form one group.
    """
    at = attempts = 0
    while at < len(segments):
        end = at + 1
        if "(" in segments[at] and _closing(segments[at : at + 1], 0) is None:
            attempts += 1
            if attempts > _MAX_OPEN:
                raise MalformedSegment("the path has too many open parentheses")
            end = _closing(segments, at) or end
        yield segments[at:end]
        at = end


def _closing(segments: Sequence[str], start: int) -> int | None:
    """Return the index after the segment that has the closing parenthesis for the segment at `start`.

    Return None if no segment closes the parentheses.
    """
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
    """Return the part of a segment before the first semicolon outside of parentheses."""
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
    """Return the value of an OData string literal such as `'O''Brien'`, or None for any other text."""
    if len(text) < 2 or text[0] != "'" or text[-1] != "'":
        return None
    inner = text[1:-1]
    if "'" in inner.replace("''", ""):
        return None
    return inner.replace("''", "'")


def qualified_operation(folded: str) -> str | None:
    """Return the last word of `microsoft.graph.name`, or None if this word cannot name an operation."""
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
            # No segment follows a collection that a function returns, so this is a key with an unknown name.
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
    """Split the arguments of a call at the commas that are outside of inner parentheses.

    Return None if the parentheses or quotes in `inner` are not balanced.
    """
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
