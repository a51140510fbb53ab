"""Declaration of settings keys with `setting(...)`, and description of these keys for the loader.

A root dataclass of settings has one field for each section. A section dataclass has one field for each key.
The names of keys follow from the names of the dataclass fields: the field `rule_sync.saas_base_url` is the
key `SaasBaseUrl` in the section `[RuleSync]`. The value of a settings key has the type str, int, float, bool,
Literal of strings, or the result type of the key's `parse` function. A tuple of these types is also allowed.
The type `X | None` is for an optional key.

A field that is declared by `tables()` is an array of tables, each a dataclass with a key `Name`. An array of
tables is `[[Section.Field]]` in TOML, or `[[Field]]` if the root dataclass declares it. If the type of an
array field names several dataclasses, the key `Kind` chooses one of them. A dataclass field that is declared
by `derived()` has no settings key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from proxy.config.values import parse_address, parse_url

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Declared:
    """Arguments of `setting(...)` that declare one settings key."""

    default: Any
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    secret: bool
    path: bool
    readable: bool
    parse: Callable[[str], Any] | None
    variable: str
    fallback_variable: str
    inherited: bool
    doc: str


@dataclass(frozen=True, slots=True)
class Tables:
    """An array of TOML tables in the settings, within one section or outside all sections."""

    section: str  # empty if it is outside all sections
    name: str
    attribute: str
    classes: tuple[type, ...]  # if there are several, the key `Kind` chooses one

    def __str__(self) -> str:
        return f"{self.section}.{self.name}".removeprefix(".")

    @property
    def top(self) -> str:
        """The section of the array of tables; the name of the array if it is outside all sections."""
        return self.section or self.name

    @property
    def by_kind(self) -> dict[str, type]:
        """Table class for each value of the key `Kind`; empty if all tables of the array have one class."""
        if len(self.classes) == 1:
            return {}
        return {keys(str(self), cls)["Kind"].choices[0]: cls for cls in self.classes}

    def class_of(self, kind: object) -> type | None:
        """Return the class of a settings table with the given `Kind`, or None if the kind is unknown."""
        if len(self.classes) == 1:
            return self.classes[0]
        return self.by_kind.get(kind) if isinstance(kind, str) else None


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a settings section, or of a table in an array, with all that the settings loader needs."""

    section: str
    name: str
    attribute: str
    declared: Declared
    kind: type
    many: bool
    choices: tuple[str, ...]
    has_secret_file: bool

    def __str__(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return str(self).replace(".", "__")


def setting(
    *,
    default: Any = REQUIRED,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
    path: bool = False,
    readable: bool = False,
    address: bool = False,
    url: bool = False,
    parse: Callable[[str], Any] | None = None,
    variable: str = "",
    fallback_variable: str = "",
    inherited: bool = False,
    doc: str,
) -> Any:
    """Declare a key of a settings section.

    `default` is the default value as the settings file would write it; a key without a default is required.

    `readable` marks a path that must lead to a readable text file when the program starts. `variable` is an
    additional environment variable that takes precedence over the settings file. `fallback_variable` is the
    environment variable that is used if the key is not given anywhere else. Set `inherited` for a key of a
    settings table in an array. If the table omits the key, the value of the same key in the surrounding
    section applies.
    """
    parse = parse_address if address else parse_url if url else parse
    path = path or readable
    declared = Declared(
        default,
        minimum,
        maximum,
        choices,
        secret,
        path,
        readable,
        parse,
        variable,
        fallback_variable,
        inherited,
        doc,
    )
    metadata = {"declared": declared}
    if default is REQUIRED:
        return field(metadata=metadata, repr=not secret)
    return field(default=_value_of_default(declared), metadata=metadata, repr=not secret)


def tables() -> Any:
    """Declare an array of settings tables.

    The type annotation of the dataclass field must name a dataclass that declares the settings keys of each
    table in the array.
    """
    return field(default=(), metadata={"tables": True})


def derived(default: Any) -> Any:
    """Declare a field of a settings dataclass, if no key of the settings file sets this field.

    The program computes the field's value after it has read the settings file.
    """
    return field(default=default, metadata={"derived": True})


def _value_of_default(declared: Declared) -> Any:
    default, convert = declared.default, Path if declared.path else declared.parse
    if convert is None:
        return default
    if isinstance(default, tuple):
        return tuple(convert(item) for item in default)
    return convert(default) if default else default


def camel(attribute: str) -> str:
    return "".join(word.capitalize() for word in attribute.split("_"))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def sections(root: type) -> dict[str, tuple[str, type]]:
    """Return, for each settings section, the root dataclass's attribute and the section's class."""
    hints = _hints(root)
    found = (each.name for each in fields(root) if not each.metadata.keys() & {"tables", "derived"})
    return {camel(name): (name, hints[name]) for name in found}


def arrays(section: str, cls: type) -> dict[str, Tables]:
    """Return the arrays of settings tables by name, in the order of declaration.

    If no section is given, `cls` is the root dataclass of the settings.
    """
    hints = _hints(cls)
    found = (each.name for each in fields(cls) if "tables" in each.metadata)
    return {camel(name): Tables(section, camel(name), name, _classes(hints[name])) for name in found}


def _classes(hint: Any) -> tuple[type, ...]:
    """Return the classes of the settings tables in an array of the type `tuple[A | B, ...]`."""
    item = get_args(hint)[0]
    return get_args(item) if get_origin(item) in (Union, UnionType) else (item,)


def keys(section: str, cls: type) -> dict[str, Key]:
    """Return the settings keys that a class declares, by name, in the order of their declaration."""
    hints = _hints(cls)
    attributes = {each.name for each in fields(cls)}
    return {key.name: key for key in _keys(section, cls, hints, attributes)}


def _keys(section: str, cls: type, hints: dict[str, Any], attributes: set[str]) -> Iterator[Key]:
    for each in fields(cls):
        if "declared" not in each.metadata:
            continue
        declared: Declared = each.metadata["declared"]
        kind, many, choices = _shape(hints[each.name])
        # A section that declares the file key itself gives it another meaning.
        has_secret_file = declared.secret and f"{each.name}_file" not in attributes
        yield Key(
            section,
            camel(each.name),
            each.name,
            declared,
            kind,
            many,
            declared.choices or choices,
            has_secret_file,
        )


def _shape(hint: Any) -> tuple[type, bool, tuple[str, ...]]:
    """Return the scalar type of a type hint, True if the hint is a list type, and a Literal's choices."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    many = get_origin(hint) is tuple
    if many:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return str, many, get_args(hint)
    return hint if isinstance(hint, type) else object, many, ()
