"""Read a configuration directory, report every error by file and line, and export its JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictBool, ValidationError

from controlplane.as_code.wanted import (
    CREDENTIAL_LISTS,
    CredentialListName,
    Wanted,
    WantedApp,
    WantedCertificate,
    WantedCredential,
    WantedFederated,
    WantedKey,
    WantedOperator,
    WantedOrg,
    WantedProxy,
    WantedRuleset,
    WantedSchema,
    as_end,
)
from controlplane.credential_input import (
    DEFAULT_AUDIENCE,
    InvalidCredential,
    checked_issuer,
    checked_text,
    is_text_of_key,
)
from controlplane.model.flat_form import encode
from controlplane.model.metadata import MetadataError
from controlplane.model.metadata import parse as parse_metadata
from controlplane.names import InvalidName, valid_name
from controlplane.store.interface import EVERY_ORG
from proxy.policy import yaml_document
from proxy.policy.resource_model import digest_of
from proxy.policy.ruleset_yaml import (
    FEW,
    InvalidRuleset,
    RulesetProblem,
    Shape,
    Text,
    document_problem,
    editor_schema,
    parse_ruleset,
    read_shape,
    shape_problems,
)
from proxy.policy.scalars import as_value
from proxy.policy.schemas import InvalidRoot, folded_root
from proxy.policy.visible import escaped, named

_EVERY_ORG_NAME: Final = f"{EVERY_ORG} stands for every organisation, and no organisation has this name"
_OTHER_FILES: Final = frozenset(("rules", "cases"))  # keys of a ruleset and of its cases
_OTHER_FILE: Final = "put rulesets and cases into a subdirectory, and name their files under `rulesets`"


class UnreadableFile(ValueError):
    """Error because a file that a configuration document names can't be read.

    The message of the exception gives the reason.
    """


class InvalidDirectory(ValueError):
    """Error because the configuration directory is invalid.

    The error has one line for each problem, sorted by file and line.
    """

    def __init__(self, problems: list[FileProblem]) -> None:
        found = sorted(set(problems), key=lambda one: (one.file, one.line, one.column, one.message))
        self.lines = tuple(str(one) for one in found)
        super().__init__("; ".join(self.lines))


@dataclass(frozen=True, slots=True)
class FileProblem:
    file: str
    line: int
    column: int
    where: str
    message: str

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{self.file}:{self.line}:{self.column}: {where}{self.message}"


# -- the form of a document


def _checked_name(text: str) -> str:
    try:
        return valid_name(text)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _checked_org_name(text: str) -> str:
    if text == EVERY_ORG:
        raise ValueError(_EVERY_ORG_NAME)
    return _checked_name(text)


def _checked_file(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or "\\" in text:
        raise ValueError("give the path of the file relative to the directory, with / and without ..")
    return text


def _checked_root(text: str) -> str:
    try:
        return folded_root(text)
    except InvalidRoot as error:
        raise ValueError(str(error)) from None


def _checked_line(text: str) -> str:
    text = text.strip()
    if not text or not text.isprintable():
        raise ValueError("the text must be one line of printable characters")
    return text


def _checked_issuer(text: str) -> str:
    try:
        return checked_issuer(text)
    except InvalidCredential as error:
        raise ValueError(str(error).removeprefix("issuer: ")) from None


def _checked_subject(text: str) -> str:
    try:
        return checked_text("subject", text)
    except InvalidCredential as error:
        raise ValueError(str(error).removeprefix("subject: ")) from None


def _checked_audience(text: str) -> str:
    try:
        return checked_text("audience", text)
    except InvalidCredential as error:
        raise ValueError(str(error).removeprefix("audience: ")) from None


def _checked_content(text: str) -> str:
    return text if is_text_of_key(text) else _checked_file(text)


_Name = Annotated[Text, AfterValidator(_checked_name), FEW]
_OrgName = Annotated[Text, AfterValidator(_checked_org_name), FEW]
_File = Annotated[Text, AfterValidator(_checked_file), FEW]
_Line = Annotated[Text, AfterValidator(_checked_line)]
_Content = Annotated[Text, AfterValidator(_checked_content), FEW]
_End = Annotated[Text, AfterValidator(as_end)]
_Truth = Annotated[StrictBool, BeforeValidator(as_value)]
_Role = Literal["viewer", "editor", "admin"]


_ENDS: Final = "End of the credential, a time of RFC 3339. If left out, the end stays as it is."


class _Federated(Shape):
    issuer: Annotated[Text, AfterValidator(_checked_issuer), FEW]
    subject: Annotated[Text, AfterValidator(_checked_subject), FEW]
    audience: Annotated[Text, AfterValidator(_checked_audience), FEW] = DEFAULT_AUDIENCE
    reuse: Literal["once", "untilEnd"] = "once"
    keys: _Content | None = Field(
        None, description="JWKS, or the file with it. If left out, proxies discover the keys."
    )
    ends: _End | None = Field(None, description=_ENDS)


class _Key(Shape):
    key: _Content = Field(description="PEM public key, PEM certificate or JWK, or the file with it.")
    ends: _End | None = Field(None, description=_ENDS)


class _Certificate(Shape):
    certificate: _Content = Field(description="PEM certificate, or the file with it.")
    ends: _End | None = Field(None, description=_ENDS)


class _App(Shape):
    name: _Name
    ruleset: _Name
    shadow: _Name | None = Field(
        None, description="Shadow ruleset. Audit events record its verdicts; it has no other effect."
    )
    owner: _Line | None = Field(None, description="Person or team that is responsible for the app.")
    note: _Line | None = None
    enabled: _Truth | None = Field(None, description="If left out, the state stays as it is.")
    secret: _Truth | None = Field(None, description="false: a new app gets no client secret.")
    secret_ends: _End | None = Field(None, description="End of the newest client secret.")
    federated: list[_Federated] | None = Field(
        None,
        description=(
            "Tokens of other issuers with which the app authenticates. If left out, they stay as they are."
        ),
    )
    keys: list[_Key] | None = Field(
        None, description="Public keys of assertions that the app signs. If left out, they stay as they are."
    )
    certificates: list[_Certificate] | None = Field(
        None, description="Client certificates of the app. If left out, they stay as they are."
    )


class _Schema(Shape):
    root: Annotated[Text, AfterValidator(_checked_root)] = Field(description="Root path, such as /v1.0.")
    file: _File = Field(description="File with the $metadata document of the service.")


class _Organisation(Shape):
    name: _OrgName
    retention: Literal["base", "90d", "1y", "7y"] | None = None
    second_person: _Truth | None = Field(
        None, description="true: another operator must approve each change of the active rules."
    )
    rulesets: list[_File] | None = Field(
        None, description="Files with rulesets. Each file contains the name of its ruleset."
    )
    apps: list[_App] | None = None
    schemas: list[_Schema] | None = None


class _Proxy(Shape):
    name: _Name
    orgs: Annotated[list[_OrgName], Field(min_length=1)]
    enabled: _Truth | None = None


class _Operator(Shape):
    name: _Name
    roles: dict[Annotated[Text, FEW], Annotated[_Role, FEW]] = Field(
        description="Role in each organisation; * is every organisation."
    )
    enabled: _Truth | None = None


class _Document(Shape):
    version: Annotated[Literal[1], BeforeValidator(as_value)]
    organisations: list[_Organisation] | None = None
    proxies: list[_Proxy] | None = None
    operators: list[_Operator] | None = None


_SHAPES: Final[Mapping[str, type[BaseModel]]] = {
    "": _Document,
    "organisations": _Organisation,
    "apps": _App,
    "federated": _Federated,
    "keys": _Key,
    "certificates": _Certificate,
    "schemas": _Schema,
    "proxies": _Proxy,
    "operators": _Operator,
}


def directory_json_schema() -> dict[str, object]:
    """Return the JSON Schema of a configuration document, for editors."""
    return editor_schema("Graphward directory", _Document)


_CONTENTS: Final[Mapping[CredentialListName, tuple[str, Callable[..., WantedCredential]]]] = {
    "federated": ("keys", WantedFederated),
    "keys": ("key", WantedKey),
    "certificates": ("certificate", WantedCertificate),
}

# -- reading


def read_documents(documents: Mapping[str, str], read_file: Callable[[str], str]) -> Wanted:
    """Return the configuration that the given documents of a configuration directory describe.

    Raise InvalidDirectory with every error in the documents, and in the files that the documents name.

    `read_file` returns the text of a file by its path in the configuration directory, or raises
    UnreadableFile.
    """
    reading = _Reading(read_file)
    for name, text in sorted(documents.items()):
        reading.take(name, text)
    if reading.problems:
        raise InvalidDirectory(reading.problems)
    return Wanted(
        tuple(sorted(reading.organisations, key=lambda each: each.name)),
        _sorted_or_none(reading.proxies),
        _sorted_or_none(reading.operators),
    )


T = TypeVar("T", WantedProxy, WantedOperator)
_Where = tuple[int | str, ...]


def _sorted_or_none(found: list[T] | None) -> tuple[T, ...] | None:
    return None if found is None else tuple(sorted(found, key=lambda each: each.name))


class _Reading:
    """Contents and errors of the configuration documents that were read so far."""

    def __init__(self, read_file: Callable[[str], str]) -> None:
        self.problems: list[FileProblem] = []
        self.organisations: list[WantedOrg] = []
        self.proxies: list[WantedProxy] | None = None
        self.operators: list[WantedOperator] | None = None
        self._read_file = read_file
        self._rulesets: dict[str, WantedRuleset | None] = {}  # keys are files; None: the ruleset is not valid
        self._places: dict[tuple[str, ...], str] = {}  # place where each name occurred first

    def take(self, file: str, text: str) -> None:
        try:
            document = yaml_document.parse(text)
        except yaml_document.InvalidYaml as error:
            self.problems += (FileProblem(file, *one) for one in error.problems)
            return
        if isinstance(document.value, dict) and not _OTHER_FILES.isdisjoint(document.value):
            self.problems.append(FileProblem(file, 1, 1, "document", _OTHER_FILE))
            return
        before = len(self.problems)
        found = [RulesetProblem(*one) for one in document.problems]
        found += _unseen_problems(document)
        found += _empty_problems(document)
        shape: _Document | None = None
        try:
            shape = read_shape(_Document, document.value)
        except ValidationError as error:
            found += shape_problems(document, error, _SHAPES)
        self.problems += (FileProblem(file, one.line, one.column, one.where, one.message) for one in found)
        if shape is not None and len(self.problems) == before:
            self._take_shape(_Source(file, document), shape)

    def _take_shape(self, source: _Source, shape: _Document) -> None:
        for at, org in enumerate(shape.organisations or ()):
            self._take_org(source, ("organisations", at), org)
        for at, proxy in enumerate(shape.proxies or ()):
            self._once(source, ("proxies", at, "name"), ("proxy", proxy.name))
        for at, operator in enumerate(shape.operators or ()):
            self._once(source, ("operators", at, "name"), ("operator", operator.name.casefold()))
        if shape.proxies is not None:
            made = [
                WantedProxy(each.name, tuple(sorted(set(each.orgs))), each.enabled) for each in shape.proxies
            ]
            self.proxies = (self.proxies or []) + made
        if shape.operators is not None:
            asked = (WantedOperator(each.name, dict(each.roles), each.enabled) for each in shape.operators)
            self.operators = [*(self.operators or ()), *asked]

    def _take_org(self, source: _Source, where: _Where, org: _Organisation) -> None:
        self._once(source, (*where, "name"), ("organisation", org.name))
        rulesets: list[WantedRuleset] | None = None
        if org.rulesets is not None:
            read = [
                self._ruleset(source, (*where, "rulesets", at), file) for at, file in enumerate(org.rulesets)
            ]
            rulesets = [each for each in read if each is not None]
            for at, ruleset in enumerate(read):
                if ruleset is not None:
                    self._once(source, (*where, "rulesets", at), ("ruleset", ruleset.name, org.name))
            if len(rulesets) == len(read):
                self._require_rulesets(source, where, org, {each.name for each in rulesets})
        for at, app in enumerate(org.apps or ()):
            self._once(source, (*where, "apps", at, "name"), ("app", app.name, org.name))
        apps: list[WantedApp] | None = None
        if org.apps is not None:
            apps = [
                self._app(source, (*where, "apps", at), org.name, each) for at, each in enumerate(org.apps)
            ]
        schemas = None
        if org.schemas is not None:
            schemas = [
                self._schema(source, (*where, "schemas", at), org.name, each)
                for at, each in enumerate(org.schemas)
            ]
        self.organisations.append(
            WantedOrg(
                org.name,
                org.retention,
                org.second_person,
                None if rulesets is None else tuple(sorted(rulesets, key=lambda each: each.name)),
                None if apps is None else tuple(sorted(apps, key=lambda each: each.name)),
                None if schemas is None else tuple(sorted(filter(None, schemas), key=lambda each: each.root)),
            )
        )

    def _require_rulesets(self, source: _Source, where: _Where, org: _Organisation, known: set[str]) -> None:
        for at, app in enumerate(org.apps or ()):
            for key, name in (("ruleset", app.ruleset), ("shadow", app.shadow)):
                if name is not None and name not in known:
                    what = f"no file under `rulesets` has a ruleset named {name}"
                    self._refuse(source, (*where, "apps", at, key), what)

    def _ruleset(self, source: _Source, where: _Where, file: str) -> WantedRuleset | None:
        if file in self._rulesets:
            return self._rulesets[file]
        self._rulesets[file] = None
        text = self._text(source, where, file)
        if text is None:
            return None
        try:
            ruleset = parse_ruleset(text)
            valid_name(ruleset.name)
        except InvalidRuleset as error:
            self.problems += (
                FileProblem(file, one.line, one.column, one.where, one.message) for one in error.problems
            )
            return None
        except InvalidName as error:
            line, column = yaml_document.parse(text).mark(("name",), at_key=False)
            self.problems.append(FileProblem(file, line, column, "name", str(error)))
            return None
        made = self._rulesets[file] = WantedRuleset(ruleset.name, text, file)
        return made

    def _schema(self, source: _Source, where: _Where, org: str, schema: _Schema) -> WantedSchema | None:
        self._once(source, (*where, "root"), ("schema", schema.root, org))
        text = self._text(source, (*where, "file"), schema.file)
        if text is None:
            return None
        try:
            digest = digest_of(encode(parse_metadata(text.encode())))
        except MetadataError as error:
            self._refuse(source, (*where, "file"), f"{schema.file}: {error}")
            return None
        return WantedSchema(schema.root, digest, schema.file, text)

    def _app(self, source: _Source, where: _Where, org: str, app: _App) -> WantedApp:
        for nth, each in enumerate(app.federated or ()):
            what = f"{each.issuer} {each.subject} for {each.audience}"
            self._once(source, (*where, "federated", nth), ("federated credential", what, org, app.name))
        if app.secret_ends is not None and app.secret is False:
            self._refuse(source, (*where, "secret_ends"), "`secret: false` gives the app no client secret")
        lists: dict[str, Any] = {
            name: self._credentials(source, (*where, name), app, name) for name in CREDENTIAL_LISTS
        }
        return WantedApp(**(app.model_dump() | lists))

    def _credentials(
        self, source: _Source, where: _Where, app: _App, name: CredentialListName
    ) -> tuple[Any, ...] | None:
        """Return the credentials in one list of an app, after reading the files that the list names."""
        given: list[BaseModel] | None = getattr(app, name)
        if given is None:
            return None
        member, make = _CONTENTS[name]
        made: list[WantedCredential] = []
        for at, each in enumerate(given):
            members = each.model_dump()
            content = members[member]
            file = None if content is None or is_text_of_key(content) else content
            text = content if file is None else self._text(source, (*where, at, member), file)
            if text is None and content is not None:
                continue
            try:
                made.append(make(**(members | {member: text or ""})))
            except ValueError as error:
                said = str(error).removeprefix(f"{member}: ")
                self._refuse(source, (*where, at, member), said if file is None else f"{file}: {said}")
                continue
            if name != "federated" and made[-1].facts in [one.facts for one in made[:-1]]:
                self._refuse(source, (*where, at), "duplicate of a credential above")
        return tuple(made)

    def _text(self, source: _Source, where: _Where, file: str) -> str | None:
        try:
            return self._read_file(file)
        except UnreadableFile as error:
            self._refuse(source, where, str(error))
            return None

    def _once(self, source: _Source, where: _Where, key: tuple[str, ...]) -> None:
        """Refuse a name that the documents already define."""
        line, column = source.document.mark(where, at_key=False)
        here = f"{source.file}:{line}:{column}"
        first = self._places.setdefault(key, here)
        if first != here:
            self._refuse(source, where, f"the {key[0]} {key[1]} is already defined at {first}")

    def _refuse(self, source: _Source, where: _Where, message: str) -> None:
        one = document_problem(source.document, where, message)
        self.problems.append(FileProblem(source.file, one.line, one.column, one.where, one.message))


@dataclass(frozen=True, slots=True)
class _Source:
    file: str
    document: yaml_document.Document


def _unseen_problems(document: yaml_document.Document) -> Iterator[RulesetProblem]:
    for each in document.unseen:
        if each.char == "\n" and is_text_of_key(each.text):
            continue
        what = f"the invisible character {named(each.char)}"
        message = f"`{each.text}` holds {what}: remove it ({escaped(each.char)})"
        yield RulesetProblem(*yaml_document.problem(each.mark, each.where, message))


def _empty_problems(document: yaml_document.Document) -> Iterator[RulesetProblem]:
    """Find YAML keys without a value in a configuration document.

    A key such as `apps:` without a value could mean an empty list, or that the directory does not manage
    apps.
    """
    waiting: list[tuple[_Where, Any]] = [((), document.value)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            waiting += (((*where, key), each) for key, each in value.items())
        elif isinstance(value, list):
            waiting += (((*where, at), each) for at, each in enumerate(value))
        elif value is None and where:
            yield document_problem(document, where, "the key has no value: write one, or remove the key")
