"""Detect invisible characters and lookalike letters in names that a person checks by eye."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from proxy.policy.odata import INVISIBLE

_UNSEEN_CATEGORIES: Final = frozenset(("Cc", "Cf", "Cs", "Zs", "Zl", "Zp"))
# Characters of symbol categories that look blank: a braille pattern without dots, a note without a head, and
# the placeholder for a picture that was not pasted.
_BLANKS: Final = frozenset("\u2800\U0001d159\ufffc")
_OTHER_NAMES: Final = {"\t": "TAB", "\n": "LINE FEED", "\r": "CARRIAGE RETURN"}

# Scripts that one name may mix, as in Japanese, Korean and Chinese (Unicode TR 39, table 1a).
_MIXTURES: Final = (
    frozenset(("LATIN", "CJK", "HIRAGANA", "KATAKANA")),
    frozenset(("LATIN", "CJK", "HANGUL")),
    frozenset(("LATIN", "CJK", "BOPOMOFO")),
)
_NO_SCRIPT: Final = frozenset(("MICRO", "FEMININE", "MASCULINE", "MODIFIER", "IDEOGRAPHIC", "VERTICAL"))
_WORD: Final = re.compile(r"[^\W_]+")
# Letters of other alphabets that look like a Latin letter.
_LOOKS_LIKE: Final = str.maketrans(
    "аеорсухѕіјԁԛԝһӏѵԍАВЕКМНОРСТУХЅІЈԌԚԜαοιρνκυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧօոսհցıɡɑᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ",
    "aeopcyxsijdqwhlvgABEKMHOPCTYXSIJGQWaoipvkuxABEZHIKMNOPTYXonuhgigaabcdefghijklmnoprstuvwyz",
)


def unseen_in(text: str) -> str | None:
    """Return a text's first invisible character other than a plain space, or None if the text has none."""
    if text.isascii() and text.isprintable():
        return None
    return next((char for char in text if _is_unseen(char)), None)


def _is_unseen(char: str) -> bool:
    if char == " " or (char.isascii() and char.isprintable()):
        return False
    return (
        char in _BLANKS
        or unicodedata.category(char) in _UNSEEN_CATEGORIES
        or INVISIBLE.fullmatch(char) is not None
    )


def named(char: str) -> str:
    """Return the code point and name of a character, such as U+200B ZERO WIDTH SPACE."""
    name = _OTHER_NAMES.get(char) or unicodedata.name(char, "")
    if not name:
        name = "a control character" if unicodedata.category(char) == "Cc" else "without a name"
    return f"U+{ord(char):04X} {name}"


def escaped(text: str, keep: str = "") -> str:
    """Return the text for display, with escapes for invisible characters that are not in `keep`."""
    if unseen_in(text) is None:
        return text
    return "".join(_escape(char) if _is_unseen(char) and char not in keep else char for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def mixed_scripts(text: str) -> tuple[str, str] | None:
    """Return two letters of one word from different scripts (writing systems), such as Latin and Cyrillic.

    The second returned letter belongs to the script that has fewer letters in the word.

    Return None if no word mixes letters of scripts that are rarely used together.
    """
    if text.isascii():
        return None
    for word in _WORD.findall(text):
        letters = {_script(char): char for char in reversed(word) if _script(char)}
        if len(letters) > 1 and not any(letters.keys() <= each for each in _MIXTURES):
            counts = {script: sum(_script(char) == script for char in word) for script in letters}
            common, *_, rare = sorted(letters, key=lambda script: (-counts[script], script != "LATIN"))
            return letters[common], letters[rare]
    return None


def _script(char: str) -> str:
    """Return the script of a character, such as LATIN, which is the first word of its Unicode name.

    Return an empty text if the character belongs to no script.
    """
    if char.isascii():
        return "LATIN" if char.isalpha() else ""
    if not unicodedata.category(char).startswith("L") or _first_word(char) in _NO_SCRIPT:
        return ""
    return _first_word(unicodedata.normalize("NFKC", char)[0])


def _first_word(char: str) -> str:
    return unicodedata.name(char, "").partition(" ")[0].partition("-")[0]


def looks_like(text: str) -> str:
    """Replace each letter that looks like a Latin letter by this Latin letter, and fold to lower case."""
    return unicodedata.normalize("NFKC", text).translate(_LOOKS_LIKE).casefold()


def near(name: str, other: str) -> bool:
    """Return True if two names differ by one letter: replaced, added, removed or swapped."""
    if abs(len(name) - len(other)) > 1:
        return False
    at = next(_differences(name, other), min(len(name), len(other)))
    rest, others = name[at:], other[at:]
    return (
        rest[1:] == others[1:]
        or rest[1:] == others
        or rest == others[1:]
        or (rest[:2] == others[:2][::-1] and rest[2:] == others[2:])
    )


def _differences(one: str, other: str) -> Iterator[int]:
    return (at for at, (first, second) in enumerate(zip(one, other, strict=False)) if first != second)
