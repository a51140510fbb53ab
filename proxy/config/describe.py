"""Text of settings for people: the resolved values with secrets masked, and the reference of all keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final

from proxy.config.declare import REQUIRED, Key, Tables, arrays, keys, sections
from proxy.config.values import number_text

MASK: Final = "********"


def describe(settings: object) -> str:
    """Return the active settings as TOML, with every secret masked."""
    return "\n".join(_described(settings)) + "\n"


def _described(settings: object) -> Iterator[str]:
    first = True
    for section, (attribute, cls) in sections(type(settings)).items():
        if not first:
            yield ""
        first = False
        yield f"[{section}]"
        values = getattr(settings, attribute)
        yield from _lines(section, values)
        for array in arrays(section, cls).values():
            for table in getattr(values, array.attribute):
                yield f"\n[[{array}]]"
                yield from _lines(str(array), table)
    for array in arrays("", type(settings)).values():
        for table in getattr(settings, array.attribute):
            yield f"\n[[{array}]]"
            yield from _lines(str(array), table)


def _lines(section: str, values: object) -> Iterator[str]:
    for key in keys(section, type(values)).values():
        yield _line(key, getattr(values, key.attribute))


def _line(key: Key, value: Any) -> str:
    if value is None:
        return f"# {key.name} is not set"
    if key.declared.secret and value:
        return f'{key.name} = "{MASK}"'
    return f"{key.name} = {_toml(value)}"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return number_text(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    text = value.as_posix() if isinstance(value, PurePath) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def reference(root: type, suffixes: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the reference of a settings class: every key, in Markdown tables.

    `suffixes` maps the name of each section to the text that ends the section's heading.
    """
    return "\n".join(_reference(root, suffixes))


def _reference(root: type, suffixes: Mapping[str, str]) -> Iterator[str]:
    for section, (_, cls) in sections(root).items():
        yield f"### [{section}]{suffixes.get(section, '')}\n"
        yield from _table(section, cls, keys(section, cls))
        for array in arrays(section, cls).values():
            yield f"#### [[{array}]]\n"
            yield from _table(str(array), array.classes[0], keys(str(array), array.classes[0]))
    for array in arrays("", root).values():
        yield from _reference_of_kinds(array)


def _reference_of_kinds(array: Tables) -> Iterator[str]:
    """Yield the reference text of a settings table that may occur several times, and is outside all sections.

    The reference first lists the keys that all kinds of the table have in common, and then the keys of each
    kind.
    """
    of_kinds = {kind: keys(str(array), cls) for kind, cls in array.by_kind.items()}
    base = array.classes[0].__base__
    assert base is not None
    common = keys(str(array), base)
    yield f"### [[{array}]]\n"
    yield from _table(str(array), base, common)
    for kind, cls in array.by_kind.items():
        yield f"#### [[{array}]] of kind {kind}\n"
        own = {name: key for name, key in of_kinds[kind].items() if _is_own(key, common)}
        yield from _table(str(array), cls, own)


def _is_own(key: Key, common: Mapping[str, Key]) -> bool:
    """Return True if not all kinds of a settings table have the key, or if its choices depend on the kind.

    The key `Kind` does not count.
    """
    return key.name != "Kind" and (key.name not in common or key.choices != common[key.name].choices)


def _table(section: str, cls: type, known: Mapping[str, Key]) -> Iterator[str]:
    # A dataclass without a docstring has its signature as its docstring.
    if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("):
        yield f"{' '.join(cls.__doc__.split())}\n"
    yield "| Key | Type | Default | Meaning |\n|---|---|---|---|"
    for key in known.values():
        name = f"`{key.name}`" + (f", `{key.name}File`" if key.has_secret_file else "")
        yield f"| {name} | {_type(key)} | {_default(key)} | {key.declared.doc} |"
    yield ""


def _type(key: Key) -> str:
    if key.choices:
        return " \\| ".join(f"`{choice}`" for choice in key.choices)
    scalar = (
        "path" if key.declared.path else "secret" if key.declared.secret else _SCALARS.get(key.kind, "text")
    )
    low, high = key.declared.minimum, key.declared.maximum
    if high is not None:
        scalar += f", {number_text(low or 0)}–{number_text(high)}"
    elif low is not None:
        scalar += f" ≥ {number_text(low)}"
    return f"list of {scalar}" if key.many else scalar


_SCALARS: Final[dict[type, str]] = {bool: "true/false", int: "integer", float: "number"}


def _default(key: Key) -> str:
    default = key.declared.default
    if key.declared.inherited:
        return f"as in `[{key.section.partition('.')[0]}]`"
    if default is REQUIRED:
        return "*required*"
    return f"`{_toml(default)}`" if default not in ("", None, ()) else "–"
