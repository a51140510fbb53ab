"""Loader of settings: converts TOML text and environment variables to a typed object, or reports all errors.

A setting's value comes from the first source that gives a value. The sources are, in this order, the key's
additional variable, `Section__Key` or `Section:Key`, the file, a fallback variable, and the default. A secret
is set directly by its `Key`, or by `KeyFile`, the path of a file. A settings source must not contain both
`Key` and `KeyFile`.

The key `Name` identifies a settings table in an array, because the order of the tables may change. If a table
of `[[Section.Array]]` has the `Name` `mail`, its keys are named `Section.Array.mail.Key` and
`Section__Array__mail__Key`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from proxy.config.declare import REQUIRED, Key, Tables, arrays, keys, sections
from proxy.config.given_text import secret_of, surroundings
from proxy.config.toml_lines import key_lines
from proxy.config.values import number_text, parse_name

T = TypeVar("T")
_WHERE_TOML_FAILED: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_NAME_OF_LINE: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_KIND_NAMES: Final[dict[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    object: "text in quotes",
}


class SettingsError(Exception):
    """Error because the settings are not valid.

    The attribute `problems` of SettingsError lists the reasons why the settings are not valid.

    The attribute `problems` has one line for each reason why the settings can't be used.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(_printable(problem) for problem in problems)
        super().__init__("\n".join(self.problems))


def load_settings(
    cls: type[T],
    text: str,
    *,
    source: str,
    base: PurePath,
    environ: Mapping[str, str],
    read_file: Callable[[PurePath], str],
) -> T:
    """Load settings of class `cls` from `text`.

    Relative paths in the settings are relative to the directory `base`.

    If a section class has a method `problems()`, the method yields conflicts between the section's keys, as
    pairs of key name and message. The method `cls.problems()` yields conflicts between two settings sections
    that are each valid alone. A method `unused()` yields a pair of key name and message for each setting that
    has no effect. `without_effect`, a derived field of `cls`, lists the settings without effect that the
    operator gave. The list of settings without effect omits fallback variables, because an operator may set
    such variables for other programs.
    """
    settings: T = _Loader(cls, source, base, environ, read_file).load(text)
    return settings


def _printable(text: str) -> str:
    """Return the text as one printable line, with all unprintable characters escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


@dataclass(frozen=True, slots=True)
class _Given:
    """A value of a setting as the file or the environment gives it, and the place of the value."""

    value: Any
    place: str
    typed: bool  # TOML values have types, values of the environment are text
    is_fallback: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    """A settings table that belongs to an array of tables, with the dataclass and the keys of the table."""

    array: Tables
    label: str  # Section.Array.Name, or its number if its name is missing or wrong
    values: dict[str, Any]
    cls: type
    keys: dict[str, Key]


_UNREAD: Final = object()  # value of a secret whose file can't be read; the error is reported


class _Loader:
    def __init__(
        self,
        root: type[Any],
        source: str,
        base: PurePath,
        environ: Mapping[str, str],
        read_file: Callable[[PurePath], str],
    ) -> None:
        self.root = root
        self.source = source
        self.base = base
        self.environ = environ
        # The specification writes a key with a colon, which some shells can't export.
        self.spellings = {name.replace(":", "__"): name for name in sorted(environ)}
        self.read_file = read_file
        self.lines: dict[tuple[str, ...], int] = {}
        self.problems: list[tuple[int, str]] = []  # the number is the line, for the order; 0 if there is none
        self.places: dict[str, str] = {}  # place of each value by "Section.Key"
        self.own_places: dict[str, str] = {}  # the same without fallback variables
        self.sections = sections(root)
        self.keys = {name: keys(name, section) for name, (_, section) in self.sections.items()}
        self.arrays = {name: arrays(name, section) for name, (_, section) in self.sections.items()}
        self.root_arrays = arrays("", root)
        self.tables: list[_Table] = []

    def load(self, text: str) -> Any:
        document = self._parse(text)
        self._find_tables(document)
        self._refuse_unknown(document)
        self._refuse_unknown_variables()
        built = {}
        for name, (attribute, section) in self.sections.items():
            before = len(self.problems)
            table = document.get(name, {})
            values = self._section(self.keys[name], table if isinstance(table, dict) else {})
            values.update(self._array(array, values) for array in self.arrays[name].values())
            if len(self.problems) == before:
                built[attribute] = section(**values)
                self._ask(built[attribute])
        built.update(self._array(array, {}) for array in self.root_arrays.values())
        self._raise_problems()
        settings = self.root(**built)
        self._ask(settings)
        self._raise_problems()
        without_effect = tuple(self._without_effect((*built.values(), settings)))
        return replace(settings, without_effect=without_effect) if without_effect else settings

    def _without_effect(self, parts: Iterable[Any]) -> Iterator[str]:
        for part in parts:
            for name, message in getattr(part, "unused", tuple)():
                if place := self.own_places.get(name):
                    yield f"{place}: {name}: {message}"

    def _ask(self, settings: Any) -> None:
        for name, message in getattr(settings, "problems", tuple)():
            self._problem(self.places.get(name) or self._place(*name.split(".")), name, message)

    def _raise_problems(self) -> None:
        if self.problems:
            raise SettingsError(text for _, text in sorted(self.problems, key=lambda problem: problem[0]))

    def _problem(self, place: str, name: str, message: str) -> None:
        line = place.rpartition(":")[2]
        self.problems.append((int(line) if line.isdecimal() else 0, f"{place}: {name}: {message}"))

    def _place(self, *path: str) -> str:
        """Return `file:line` of a settings key, or of its table if the key has no line, or the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return f"{self.source}:{self.lines[path[:length]]}"
        return self.source

    def _place_of(self, key: Key) -> str:
        return self._place(*key.section.split("."), key.name)

    # Methods for the document and its names.

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError([self._syntax_problem(str(error), text)]) from None
        # A number with thousands of digits, or nesting without an end.
        except (ValueError, RecursionError) as error:
            raise SettingsError([f"{self.source}: the file is not valid TOML: {error}"]) from None
        self.lines = key_lines(text)
        return document

    def _syntax_problem(self, message: str, text: str) -> str:
        where = _WHERE_TOML_FAILED.search(message)
        if where is None:
            return f"{self.source}: {message}"
        line = where[1] or text.count("\n") + 1
        column = where[2] or len(text) - text.rfind("\n")
        problem = message[: where.start()]
        if problem == "Invalid value" and text.splitlines()[int(line) - 1][int(column) - 1 :][:1].isalpha():
            problem += ": write text in quotes"
        if problem == "Cannot overwrite a value":
            named = _NAME_OF_LINE.match(text.split("\n")[int(line) - 1])
            twice = named[1] if named is not None else "this key"
            problem = f"{twice} is given twice in its section: remove one of the two lines"
        return f"{self.source}:{line}:{column}: {problem}"

    def _find_tables(self, document: dict[str, Any]) -> None:
        of_sections = (each for known in self.arrays.values() for each in known.values())
        for array in (*of_sections, *self.root_arrays.values()):
            section = document.get(array.section) if array.section else document
            if isinstance(section, dict):
                found = section.get(array.name, [])
                if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
                    place = self._place(*str(array).split("."))
                    self._problem(place, str(array), f"is an array of tables: write [[{array}]]")
                    continue
                for number, values in enumerate(found):
                    cls = array.class_of(values.get("Kind"))
                    if cls is None:
                        self._refuse_kind(array, number, values)
                    else:
                        self.tables.append(self._table(array, number, values, cls))

    def _refuse_kind(self, array: Tables, number: int, values: Mapping[str, Any]) -> None:
        kinds = ", ".join(array.by_kind)
        given = f"is {_shown(values['Kind'])}" if "Kind" in values else "missing, and required"
        label = f"{array}.{_name_of(values, str(number))}"
        place = self._place(*str(array).split("."), str(number), "Kind")
        self._problem(place, f"{label}.Kind", f"{given}: write one of {kinds}")

    def _table(self, array: Tables, number: int, values: dict[str, Any], cls: type) -> _Table:
        numbered = f"{array}.{number}"
        label = f"{array}.{_name_of(values, str(number))}"
        if any(each.label == label for each in self.tables):
            place = self._place(*numbered.split("."), "Name")
            self._problem(place, f"{array}.Name", f"{values['Name']!r} is given twice")
            label = numbered
        old, new = tuple(numbered.split(".")), tuple(label.split("."))
        known = {path: line for path, line in self.lines.items() if path[: len(old)] == old}
        self.lines.update({(*new, *path[len(old) :]): line for path, line in known.items()})
        return _Table(array, label, values, cls, keys(label, cls))

    def _refuse_unknown(self, document: dict[str, Any]) -> None:
        for name, table in document.items():
            if name in self.root_arrays:
                continue
            if name not in self.sections:
                kind = "section" if isinstance(table, dict) else "key outside any section"
                self._problem(self._place(name), name, f"unknown {kind}, {self._nearest_section(name)}")
            elif not isinstance(table, dict):
                self._problem(self._place(name), name, f"is a section: write [{name}]")
            else:
                self._refuse_unknown_keys(name, table, [*_known(self.keys[name]), *self.arrays[name]])
        for each in self.tables:
            self._refuse_unknown_keys(each.label, each.values, _known(each.keys))

    def _nearest_section(self, name: str) -> str:
        """Suggest a section whose name begins like the unknown name, or is similar to the unknown name."""
        for section in self.keys:
            if section.casefold().startswith(name.casefold()):
                return f"did you mean {section}?"
        for section, known in self.keys.items():
            for key in known:
                if key.casefold().startswith(name.casefold()):
                    return f"did you mean {section}, which has the key {key}?"
        return _nearest(name, [*self.sections, *self.root_arrays])

    def _refuse_unknown_keys(self, label: str, table: dict[str, Any], known: list[str]) -> None:
        for key in table:
            if key not in known:
                message = f"unknown key, {_nearest(key, known)}"
                self._problem(self._place(*label.split("."), key), f"{label}.{key}", message)

    def _refuse_unknown_variables(self) -> None:
        """Report unknown environment variables, such as the misspelt `Audit__MaxBatchSiz`, as mistakes.

        Environment variables are ignored unless their name begins with the name of a settings section.
        """
        by_folded = {name.casefold(): name for name in (*self.sections, *self.root_arrays)}
        for variable in sorted(self.environ):
            spelled = variable.replace(":", "__")
            section, separator, key = spelled.partition("__")
            name = by_folded.get(section.casefold())
            known = self._variables(name) if name else []
            if separator and name and (section != name or key not in known):
                message = f"unknown setting, {_nearest(key, known, prefix=f'{name}__')}"
                self._problem("environment", variable, message)
            elif separator and name and self.spellings[spelled] != variable:
                self._problem("environment", variable, f"given twice, also as {self.spellings[spelled]}")

    def _variables(self, section: str) -> list[str]:
        """Return the environment variables of a settings section, without the prefix `Section__`."""
        within = {
            each.label.partition(".")[2].replace(".", "__"): each
            for each in self.tables
            if each.array.top == section
        }
        of_tables = [
            f"{label}__{key}" for label, each in within.items() for key in _known(each.keys) if key != "Name"
        ]
        return [*_known(self.keys.get(section, {})), *of_tables]

    # Methods for values.

    def _array(self, array: Tables, section: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """Load an array of settings tables.

        Return a pair: the attribute name of the array, and a tuple with one settings object for each valid
        table.

        Settings tables in an array inherit some keys from the section that contains the array.
        """
        built = []
        for each in self.tables:
            if each.array != array:
                continue
            before = len(self.problems)
            values = self._section(each.keys, each.values)
            for key in each.keys.values():
                if key.declared.inherited and key.attribute in section:
                    values.setdefault(key.attribute, section[key.attribute])
            if len(self.problems) == before:
                built.append(each.cls(**values))
        return array.attribute, tuple(built)

    def _section(self, known: Mapping[str, Key], table: dict[str, Any]) -> dict[str, Any]:
        values = {}
        for key in known.values():
            given = self._given(key, table)
            if given is not None:
                self.places[str(key)] = given.place
                if not given.is_fallback:
                    self.own_places[str(key)] = given.place
                if given.value is _UNREAD:
                    continue
                try:
                    values[key.attribute] = self._value(key, given)
                except ValueError as error:
                    self._problem(given.place, self._name_at(key, given), str(error))
            elif key.declared.default is REQUIRED:
                also = f" (or {key.name}File)" if key.has_secret_file else ""
                self._problem(self._place_of(key), str(key), f"missing, and required{also}")
            elif key.declared.path and key.declared.default:
                values[key.attribute] = self._path(key.declared.default)
        return values

    def _given(self, key: Key, table: dict[str, Any]) -> _Given | None:
        declared = key.declared
        if declared.variable and declared.variable in self.environ:
            return _Given(self.environ[declared.variable], "environment", typed=False)
        prefix = key.variable.removesuffix(key.name)
        variables = {
            name[len(prefix) :]: self.environ[variable]
            for name, variable in self.spellings.items()
            if name.startswith(prefix)
        }
        for values, typed in ((variables, False), (table, True)):
            given = self._in_one_place(key, values, typed=typed)
            if given is not None:
                return given
        if declared.fallback_variable and self.environ.get(declared.fallback_variable):
            value = self.environ[declared.fallback_variable]
            return _Given(value, "environment", typed=False, is_fallback=True)
        return None

    def _in_one_place(self, key: Key, values: Mapping[str, Any], *, typed: bool) -> _Given | None:
        file_key = f"{key.name}File"
        by_file = key.has_secret_file and file_key in values
        both = key.declared.secret and file_key in values and key.name in values
        name = file_key if by_file else key.name
        place = self._place(*key.section.split("."), name) if typed else "environment"
        if both:
            self._problem(place, str(key), f"given twice, as {key.name} and as {file_key}")
        if by_file:
            return self._read_secret(key, values[file_key], place)
        return _Given(values[key.name], place, typed) if key.name in values else None

    def _read_secret(self, key: Key, path: Any, place: str) -> _Given:
        name = f"{key}File"
        if not isinstance(path, str) or not path:
            self._problem(place, name, "the value must be the path of a file, in quotes")
        else:
            try:
                secret = secret_of(self.read_file(self._path(path)))
            except (OSError, ValueError) as error:
                self._problem(place, name, _unreadable(self._path(path), error))
            else:
                if secret:
                    return _Given(secret, place, typed=True)
                self._problem(place, name, f"{path} is empty")
        return _Given(_UNREAD, place, typed=True)

    def _name_at(self, key: Key, given: _Given) -> str:
        if given.place != "environment":
            return str(key)
        own = (key.declared.variable, key.declared.fallback_variable)
        given_as = self.spellings.get(key.variable, key.variable)
        return next((name for name in own if name and name in self.environ), given_as)

    def _value(self, key: Key, given: _Given) -> Any:
        raw = given.value
        if not key.many:
            return self._scalar(key, raw, typed=given.typed)
        if isinstance(raw, str) and not given.typed:
            raw = [item.strip() for item in raw.split(",") if item.strip()]
        elif not isinstance(raw, list):
            raw = [raw]  # a list of one may be written as its only item
        return tuple(self._scalar(key, item, typed=given.typed) for item in raw)

    def _scalar(self, key: Key, raw: Any, *, typed: bool) -> Any:
        value = _typed(key, raw) if typed else _from_text(key, raw)
        declared = key.declared
        if declared.secret:
            value = secret_of(value)
            _refuse_surroundings(value)
        if value == "":
            return _empty(declared.default)
        if declared.path:
            return self._readable_path(key, value)
        if declared.parse is not None:
            return declared.parse(value)
        _check_range(key, value)
        return value

    def _path(self, text: str) -> Path:
        """Resolve a relative path in the settings against the base directory.

        The base directory contains no symbolic links, so each `..` in a relative path removes one directory
        name.
        """
        base, path = self.base, PurePath(text)
        while path.parts[:1] == ("..",):
            base, path = base.parent, path.relative_to("..")
        return Path(base, path)

    def _readable_path(self, key: Key, text: str) -> Path:
        if "\0" in text:
            raise ValueError("the value must be the path of a file")
        path = self._path(text)
        if key.declared.readable:
            try:
                self.read_file(path)
            except (OSError, ValueError) as error:
                raise ValueError(_unreadable(path, error)) from None
        return path


def _known(known: Mapping[str, Key]) -> list[str]:
    """Return all accepted names of settings keys, including the `KeyFile` names of secrets."""
    found = []
    for key in known.values():
        found += [key.name, f"{key.name}File"] if key.has_secret_file else [key.name]
    return found


def _name_of(table: Mapping[str, Any], otherwise: str) -> str:
    try:
        return parse_name(table["Name"])
    except (KeyError, TypeError, ValueError):
        return otherwise


def _typed(key: Key, raw: Any) -> Any:
    """Return a TOML value in the type of the settings key.

    In Python, bool is a kind of int. In a settings file, a boolean is not a number.
    """
    if key.kind is float and type(raw) is int:
        return float(raw)
    wanted = str if key.kind not in (bool, int, float) else key.kind
    if type(raw) is not wanted:
        found = "" if key.declared.secret else f", not {_shown(raw)}"
        raise ValueError(f"the value must be {_wanted(key)}{found}")
    return raw


def _from_text(key: Key, text: str) -> Any:
    """Convert an environment variable's text to the type of the settings key."""
    if key.kind is bool and text.casefold() in ("true", "false"):
        return text.casefold() == "true"
    if key.kind is int and _INTEGER.fullmatch(text):
        return int(text)
    if key.kind is float and _NUMBER.fullmatch(text):
        return float(text)
    if key.kind in (bool, int, float):
        raise ValueError(f"the value must be {_wanted(key)}, not {text!r}")
    return text


def _empty(default: Any) -> str | None:
    """Return the value that an empty text stands for, if the settings key may be empty."""
    if default is None or default == "":
        return None if default is None else ""
    raise ValueError("the value must not be empty")


def _wanted(key: Key) -> str:
    wanted = _KIND_NAMES.get(key.kind, _KIND_NAMES[str])
    return f"{wanted} or a list of them" if key.many else wanted


def _shown(raw: Any) -> str:
    return {True: "true", False: "false"}[raw] if isinstance(raw, bool) else repr(raw)


def _check_range(key: Key, value: Any) -> None:
    declared = key.declared
    if key.choices and value not in key.choices:
        raise ValueError(f"the value must be one of {', '.join(key.choices)}, not {value!r}")
    if key.kind not in (int, float):
        return
    low, high = declared.minimum, declared.maximum
    if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
        bounds = [f"at least {number_text(low)}"] if low is not None else []
        bounds += [f"at most {number_text(high)}"] if high is not None else []
        raise ValueError(f"the value must be {' and '.join(bounds) or 'finite'}, not {number_text(value)}")


def _refuse_surroundings(secret: str) -> None:
    if around := surroundings(secret):
        raise ValueError(f"the value has {around} around the secret: the value must be the secret alone")


def _unreadable(path: Path, error: OSError | ValueError) -> str:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return f"can't read {path}: {reason}"


def _nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    by_folded = {each.casefold(): each for each in known}
    close = get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.0)
    nearest = prefix + by_folded[close[0]]
    sure = get_close_matches(name.casefold(), close, cutoff=0.6)
    return f"did you mean {nearest}?" if sure else f"the nearest known is {nearest}"
