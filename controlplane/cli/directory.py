"""Read and write the configuration directories of `apply` and `export`, and files for new secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from shlex import quote
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from controlplane.cli.failure import FAILED, CommandFailed
from controlplane.cli.output_file import written
from proxy.config.given_text import NotUtf8, text_of
from proxy.process.own_process import make_directory
from proxy.wire.figures import counted

if TYPE_CHECKING:
    from controlplane.as_code.plan import Change, Kind
    from controlplane.as_code.wanted import Wanted, WantedApp, WantedOrg
    from controlplane.operations.config import AppliedConfig

_SUFFIXES: Final = (".yaml", ".yml")
_SCHEMA_FILE: Final = "graphward.schema.json"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_PLAIN: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")  # names that a vault keeps distinct
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9]+")
_DIGITS: Final = 12
_ROOM: Final = 128


def read_directory(directory: Path) -> Wanted:
    """Return the configuration that the YAML files in a directory describe.

    A file in a subdirectory is read only if one of the YAML files names it. Raise CommandFailed with every
    error in the files of the directory.
    """
    from controlplane.as_code.documents import InvalidDirectory, UnreadableFile, read_documents

    try:
        files = sorted(
            each
            for each in directory.iterdir()
            if each.suffix in _SUFFIXES and each.is_file() and not each.name.startswith(".")
        )
    except OSError as error:
        raise CommandFailed(FAILED, f"{directory}: {error.strerror}") from None
    if not files:
        raise CommandFailed(
            FAILED, f"{directory}: contains no .yaml file; the command `export` can write the files"
        )
    inside = directory.resolve()

    def read_file(name: str) -> str:
        file = (directory / name).resolve()
        if not file.is_relative_to(inside):
            raise UnreadableFile(f"{name}: the path leads out of the directory")
        try:
            if file.exists() and not file.is_file():
                raise UnreadableFile(f"{name}: is not a regular file")  # Reading from a pipe may never end.
            return text_of(file.read_bytes())
        except OSError as error:
            raise UnreadableFile(f"{name}: {error.strerror}") from None
        except NotUtf8 as error:
            raise UnreadableFile(f"{name}: can't be read: {error}") from None

    try:
        return read_documents({each.name: read_file(each.name) for each in files}, read_file)
    except UnreadableFile as error:
        raise CommandFailed(FAILED, f"{directory}/{error}") from None
    except InvalidDirectory as error:
        raise CommandFailed(FAILED, *(f"{directory}/{line}" for line in error.lines)) from None


def write_directory(directory: Path, wanted: Wanted) -> list[Path]:
    """Write the files of an export, and return their paths.

    Raise CommandFailed if the directory already has files.
    """
    from controlplane.as_code.documents import directory_json_schema

    try:
        make_directory(directory)
        if any(directory.iterdir()):
            raise CommandFailed(FAILED, f"{directory}: the directory must be empty or new")
        texts: dict[str, str] = {}
        names = _Names()
        for org in wanted.organisations:
            texts |= _org_files(names.file_name(org.name), org)
        fleet = _fleet(wanted)
        if fleet:
            texts[f"{names.file_name('fleet')}.yaml"] = _yaml(fleet)
        schema = msgspec.json.encode(directory_json_schema())
        texts[_SCHEMA_FILE] = msgspec.json.format(schema, indent=2).decode() + "\n"
        for name, text in texts.items():
            make_directory((directory / name).parent)
            with written(directory / name) as write:
                write(text.encode())
    except OSError as error:
        raise CommandFailed(FAILED, f"{error.filename or directory}: {error.strerror}") from None
    return [directory / name for name in sorted(texts)]


class _Names:
    """Generator of file names, which returns no name twice."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def file_name(self, name: str) -> str:
        base = _safe(name)
        found, number = base, 2
        while found.casefold() in self._taken:
            found, number = f"{base}-{number}", number + 1
        self._taken.add(found.casefold())
        return found


def _safe(name: str) -> str:
    return _UNSAFE.sub("-", name).strip(".-") or "unnamed"


def _org_files(base: str, org: WantedOrg) -> dict[str, str]:
    files: dict[str, str] = {}
    members: dict[str, Any] = {"name": org.name}
    if org.retention is not None:
        members["retention"] = org.retention
    if org.second_person is not None:
        members["second_person"] = org.second_person
    names, listed = _Names(), []
    for ruleset in org.rulesets or ():
        file = f"rulesets/{base}/{names.file_name(ruleset.name)}.yaml"
        files[file] = ruleset.yaml
        listed.append(file)
    members["rulesets"] = listed
    members["apps"] = [_app_members(f"credentials/{base}", names, each, files) for each in org.apps or ()]
    files[f"{base}.yaml"] = _yaml({"organisations": [members]})
    return files


_IN_FILES: Final = (
    ("federated", "keys", "jwks.json"),
    ("keys", "key", "jwk.json"),
    ("certificates", "certificate", "pem"),
)


def _app_members(folder: str, names: _Names, app: WantedApp, files: dict[str, str]) -> dict[str, Any]:
    """Return an app as a mapping for YAML, and add the files of the app's credentials to `files`."""
    members = _without_none(msgspec.to_builtins(app))
    if (ends := members.pop("secretEnds", None)) is not None:
        members["secret_ends"] = ends
    for name, member, ending in _IN_FILES:
        for each in members.get(name, ()):
            text = each.pop(member)
            if text:
                file = f"{folder}/{names.file_name(f'{app.name}-{member}')}.{ending}"
                files[file] = _readable(text)
                each[member] = file
            if each["ends"] is None:
                del each["ends"]
    return members


def _readable(text: str) -> str:
    """Return a public key as JSON on several lines, or a certificate as PEM."""
    if text.startswith("{"):
        return msgspec.json.format(text, indent=2) + "\n"
    return f"-----BEGIN CERTIFICATE-----\n{fill(text, 64)}\n-----END CERTIFICATE-----\n"


def _fleet(wanted: Wanted) -> dict[str, Any]:
    found = {"proxies": wanted.proxies, "operators": wanted.operators}
    return {
        name: [_without_none(msgspec.to_builtins(each)) for each in rows]
        for name, rows in found.items()
        if rows is not None
    }


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping without the members that are None.

    The result omits `enabled: true`, because true is the default.
    """
    left_out = ("enabled", True)
    return {key: each for key, each in members.items() if each is not None and (key, each) != left_out}


def _yaml(members: Mapping[str, Any]) -> str:
    import yaml

    text = yaml.safe_dump({"version": 1, **members}, sort_keys=False, allow_unicode=True, width=100)
    return f"# yaml-language-server: $schema={_SCHEMA_FILE}\n{text}"


# Files of secrets


class SecretFile(msgspec.Struct, rename="camel", frozen=True):
    """Secret file that was written, with the object to which the secret belongs."""

    kind: Kind
    org: str | None
    name: str
    file: str


class LostSecret(msgspec.Struct, rename="camel", frozen=True):
    """New object whose secret could not be written to a file."""

    kind: Kind
    org: str | None
    name: str
    why: str
    command: str  # command that makes another secret


class WrittenSecrets(msgspec.Struct, frozen=True):
    files: tuple[SecretFile, ...] = ()
    lost: tuple[LostSecret, ...] = ()


class SecretFiles:
    """Files for the new secrets that a plan makes.

    The name of a secret file depends only on its app or proxy.
    """

    def __init__(self, directory: Path | None, changes: Sequence[Change]) -> None:
        self._directory = directory
        made = [each for each in changes if each.action == "add" and each.gate == "none"]
        self._apps = [each for each in made if each.kind == "app"]
        self._proxies = [each for each in made if each.kind == "proxy"]

    def require_place(self) -> None:
        """Raise CommandFailed if the secret files can't be written.

        The files can't be written if the directory or disk space is missing, or if a file would be replaced.
        """
        from tempfile import TemporaryDirectory

        if not self._apps and not self._proxies:
            return
        made = f"{counted(len(self._apps), 'app')} and {counted(len(self._proxies), 'proxy')}"
        if self._directory is None:
            raise CommandFailed(
                FAILED,
                f"the plan creates secrets for {made}: "
                "give a directory for the secret files with --secrets-to DIR",
            )
        bases = {_base(each.org, each.name) for each in (*self._apps, *self._proxies)}
        try:
            make_directory(self._directory)
            taken = {each.name.rpartition(".")[0] for each in self._directory.iterdir()}
            if there := sorted(taken & bases):
                raise CommandFailed(
                    FAILED,
                    *(
                        f"{self._directory / each}.*: a file with this name exists: move it away first"
                        for each in there
                    ),
                )
            with TemporaryDirectory(dir=self._directory) as room:
                for number in range(2 * len(bases)):
                    (Path(room) / str(number)).write_bytes(bytes(_ROOM))
        except OSError as error:
            what = f"{self._directory}: the files for secrets of {made} can't be written"
            raise CommandFailed(FAILED, f"{what}: {error.strerror}") from None

    def write(self, made: AppliedConfig) -> WrittenSecrets:
        """Write each new secret to its own file, without a final newline.

        If one secret file cannot be written, the other secret files are still written.
        """
        if self._directory is None:
            return WrittenSecrets()
        files: list[SecretFile] = []
        lost: dict[tuple[str | None, str], LostSecret] = {}
        for thing, ending, text in _secrets(made):
            kind, org, name, _ = thing
            path = self._directory / f"{_base(org, name)}.{ending}"
            try:
                with written(path) as write:
                    write(text.encode())
            except CommandFailed as failed:
                lost.setdefault((org, name), LostSecret(kind, org, name, failed.lines[0], thing.again))
            else:
                files.append(SecretFile(kind, org, name, str(path)))
        return WrittenSecrets(tuple(files), tuple(lost.values()))


class _Thing(NamedTuple):
    kind: Kind
    org: str | None
    name: str
    again: str  # command that makes another secret


def _secrets(made: AppliedConfig) -> Iterator[tuple[_Thing, str, str]]:
    """Yield each secret with its owner and the suffix of the secret's file."""
    for app in made.apps:
        again = f"app rotate-secret {quote(app.name)} --org {quote(app.org)}"
        thing = _Thing("app", app.org, app.name, again)
        yield thing, "client-id", app.client_id
        if app.client_secret is not None:
            yield thing, "client-secret", app.client_secret
    for proxy in made.proxies:
        thing = _Thing("proxy", None, proxy.name, f"proxy rotate-secret {quote(proxy.name)}")
        yield thing, "api-key", proxy.api_key
        yield thing, "hmac-secret", proxy.hmac_secret


def _base(org: str | None, name: str) -> str:
    """Return the unique prefix for the names of the files with the secrets of one app or proxy.

    If the name has a character that a key vault refuses, the prefix ends with digits of the name's SHA-256
    digest.
    """
    parts = [name] if org is None else [org, name]
    base = ".".join(_NOT_PLAIN.sub("-", each).strip("-") or "unnamed" for each in parts)
    if all(map(_PLAIN.fullmatch, parts)):
        return base
    return f"{base}.{sha256(msgspec.json.encode(parts)).hexdigest()[:_DIGITS]}"
