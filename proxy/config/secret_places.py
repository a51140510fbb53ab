"""Finder of the files that contain secret values of the settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy.config.declare import Key, Tables, arrays, keys, sections
from proxy.config.given_text import text_of


@dataclass(frozen=True, slots=True)
class GivenSecrets:
    files: tuple[Path, ...]  # paths in keys like PasswordFile
    inline: tuple[str, ...]  # names of the keys whose secret is in the settings file


def given_secrets(root: type, config: Path, environ: Mapping[str, str]) -> GivenSecrets:
    """Find the secrets in a valid settings file of the class `root`, and in the environment variables."""
    document = tomllib.loads(text_of(config.read_bytes()))
    spellings = {name.replace(":", "__"): value for name, value in environ.items()}
    base = config.resolve().parent
    files: dict[Path, None] = {}
    inline = []
    for key, table in _secret_keys(root, document):
        file = spellings.get(f"{key.variable}File") or table.get(f"{key.name}File")
        if file:
            files[Path(base, file)] = None
        if table.get(key.name):
            inline.append(str(key))
    return GivenSecrets(tuple(files), tuple(inline))


def _secret_keys(root: type, document: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for section, (_, cls) in sections(root).items():
        table = document.get(section, {})
        yield from ((key, table) for key in keys(section, cls).values() if key.has_secret_file)
        for array in arrays(section, cls).values():
            yield from _secret_keys_of_tables(array, table)
    for array in arrays("", root).values():
        yield from _secret_keys_of_tables(array, document)


def _secret_keys_of_tables(
    array: Tables, table: Mapping[str, Any]
) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for each in table.get(array.name, []):
        cls = array.class_of(each.get("Kind"))
        assert cls is not None, "the settings can be used"
        of_table = keys(f"{array}.{each['Name']}", cls)
        yield from ((key, each) for key in of_table.values() if key.has_secret_file)
