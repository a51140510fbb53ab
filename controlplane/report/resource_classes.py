"""Resource classes of audit reports, with the packs, types and names that belong to each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from proxy.policy.ruleset import Match

_NONE: Final[frozenset[str]] = frozenset()


class ResourceClass(NamedTuple):
    """A class of resources, such as mail, whose requests an audit report counts.

    A request belongs to a class such as mail if its path leads to schema elements of this class, or contains
    a word that names the class (`words`).

    If `at_end` is True, a request belongs to the class only if the last resource in its path does. So
    `/users/{id}/messages` belongs to the mail class, not to the users class.
    """

    name: str
    noun: str  # the object in a sentence: "read mail"
    covers: str
    things: Match
    words: frozenset[str]
    shared: frozenset[str] = _NONE  # words that count only with `among`, and only without `apart`
    among: frozenset[str] = _NONE
    apart: frozenset[str] = _NONE
    at_end: bool = False
    selected: frozenset[str] = _NONE  # properties that a response has only if `$select` names them


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CHAT_WORDS: Final = _words("chats channels teams primarychannel")

MAIL: Final = ResourceClass(
    "mail",
    "mail",
    "messages, mail folders, group conversations, mail tips, exports of mailboxes",
    Match(pack=("mail",)),
    _words(
        "mailfolders sendmail inferenceclassification mailboxes exportitems createimportsession"
        " conversations threads posts getmailtips analyzedemails"
    ),
    shared=_words("messages childfolders"),
    apart=_CHAT_WORDS | {"contactfolders"},
)
FILES: Final = ResourceClass(
    "files",
    "files",
    "drives, files and their content, list items of sites, workbooks, shared links",
    Match(pack=("files", "list-items"), resource=("drive", "driveItem", "sharedDriveItem")),
    _words(
        "drive drives driveitem filesfolder workbook thumbnails shares retrieval sharedwithme createlink"
        " createuploadsession"
    ),
    shared=_words("lists"),
    apart=_words("todo"),
)
CALENDARS: Final = ResourceClass(
    "calendars",
    "calendars",
    "events, calendars, free and busy times, reminders",
    Match(pack=("calendar",)),
    _words(
        "events calendar calendars calendarview calendargroup calendargroups reminderview getschedule"
        " findmeetingtimes"
    ),
)
CHATS: Final = ResourceClass(
    "chats",
    "chats",
    "messages of chats and channels of Teams, their hosted content, chats with Copilot",
    Match(pack=("chats",), resource=("chat",)),
    _words(
        "chats chat getallmessages getallretainedmessages hostedcontents pinnedmessages replies"
        " aiinteractions aiinteractionhistory interactionhistory"
    ),
    shared=_words("messages"),
    among=_CHAT_WORDS,
)
DIRECTORY: Final = ResourceClass(
    "directory",
    "the directory",
    "users, groups, devices, applications, their members and owners, roles",
    Match(pack=("membership", "owners", "roles"), resource=("directoryObject",)),
    _words(
        "users me groups directoryobjects devices applications serviceprincipals organization domains"
        " administrativeunits directoryroles directoryroletemplates members owners memberof"
        " transitivememberof transitivemembers manager directreports ownedobjects createdobjects"
        " registeredowners registeredusers owneddevices registereddevices deleteditems getbyids"
        " getmembergroups"
        " getmemberobjects checkmembergroups checkmemberobjects roleassignments roledefinitions joinedteams"
        " people validateproperties acceptedsenders rejectedsenders sponsors scopedmembers scopedrolememberof"
    ),
    at_end=True,
)
CREDENTIALS: Final = ResourceClass(
    "credentials",
    "credentials",
    "secrets and keys of applications, recovery keys, authentication methods, passwords",
    Match(pack=("credentials", "recovery-keys", "authentication-methods")),
    _words(
        "keycredentials passwordcredentials federatedidentitycredentials addpassword removepassword addkey"
        " removekey addtokensigningcertificate bitlocker recoverykeys devicelocalcredentials authentication"
        " authenticationmethods userregistrationdetails changepassword resetpassword passwordprofile"
    ),
    selected=_words("passwordprofile keycredentials passwordcredentials"),
)

CLASSES: Final[Mapping[str, ResourceClass]] = {
    each.name: each for each in (MAIL, FILES, CALENDARS, CHATS, DIRECTORY, CREDENTIALS)
}

# Class of each type that the body of POST /search/query can name.
SEARCHED: Final[Mapping[str, str]] = {
    "message": "mail",
    "event": "calendars",
    "drive": "files",
    "driveitem": "files",
    "list": "files",
    "listitem": "files",
    "chatmessage": "chats",
    "person": "directory",
}
# Operations that return several classes at once, by their folded name.
HANDED_OVER: Final[Mapping[str, frozenset[str]]] = {
    "exportpersonaldata": _words("mail calendars chats files directory"),
    "ediscovery": _words("mail calendars chats files"),
}
# Operations whose body decides which of these classes they reach. The trail does not hold bodies.
TOLD_BY_BODY: Final[Mapping[str, frozenset[str]]] = {
    "runhuntingquery": _words("mail chats directory"),
    "exportitems": _words("mail calendars"),
    "createimportsession": _words("mail calendars"),
}
# Relations that lead only to people, although a schema declares them for objects of any type.
TO_PEOPLE: Final = _words("manager directreports transitivereports sponsors")
# Actions, called by POST, that return data and change nothing.
READING_ACTIONS: Final = _words(
    "query runhuntingquery exportitems exportpersonaldata export exportresult getschedule getmailtips"
    " findmeetingtimes getmembergroups getmemberobjects checkmembergroups checkmemberobjects getbyids"
    " validateproperties retrieval preview createlink $query delta search translateexchangeids"
)
