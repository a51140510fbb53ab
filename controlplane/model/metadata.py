"""Parse an OData v4 `$metadata` document (CSDL XML) into plain typed data, within size limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Final
from xml.parsers import expat

MAX_DOCUMENT: Final = 16 * 1024 * 1024  # bytes; Microsoft Graph's beta has about 5 MiB
MAX_TYPES: Final = 10_000  # entity and complex types; Microsoft Graph's v1.0 has about 3,000
MAX_NESTING: Final = 64  # nested XML elements; CSDL needs about 12
MAX_NAME: Final = 256  # characters of a name with its namespace
MAX_BASE_TYPES: Final = 32  # base types above one type

_EDM: Final = "http://docs.oasis-open.org/odata/ns/edm"
_EDMX: Final = "http://docs.oasis-open.org/odata/ns/edmx"
_CAPABILITIES: Final = "Org.OData.Capabilities.V1"
_STREAM: Final = "Edm.Stream"
_SIMPLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUALIFIED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_COLLECTION: Final = re.compile(r"Collection\((.*)\)", re.DOTALL)
_DOWNLOAD: Final = "download $metadata from the service again"


class MetadataError(ValueError):
    """Error because a `$metadata` document can't be used as a schema.

    The message of a MetadataError gives the line, the fault and the remedy.
    """

    def __init__(self, line: int, wrong: str, remedy: str) -> None:
        super().__init__(f"line {line}: {wrong}: {remedy}")
        self.line = line


@dataclass(frozen=True, slots=True)
class TypeRef:
    """Reference to a type by its full name, for one value or for a collection of values."""

    name: str
    collection: bool


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    type: TypeRef

    @property
    def is_stream(self) -> bool:
        return self.type.name == _STREAM


@dataclass(frozen=True, slots=True)
class Navigation:
    name: str
    type: TypeRef
    contained: bool
    expandable: bool = True


@dataclass(frozen=True, slots=True)
class Type:
    """An entity type or a complex type of a schema.

    `base` is the full name of the parent type, from which the type derives.
    """

    name: str
    base: str | None
    entity: bool
    open: bool
    has_stream: bool
    properties: tuple[Property, ...]
    navigations: tuple[Navigation, ...]


@dataclass(frozen=True, slots=True)
class Root:
    """An entity set or a singleton of a schema."""

    name: str
    type: TypeRef


@dataclass(frozen=True, slots=True)
class Operation:
    """An overload of a function or an action of a schema.

    `binds` is None for an unbound operation, which a client calls at the service root.
    """

    name: str
    action: bool
    binds: TypeRef | None
    returns: TypeRef | None


@dataclass(frozen=True, slots=True)
class Schema:
    """All declarations of a schema: types, roots, operations and aliases.

    `aliases` lists pairs: a short name that clients may use, and the namespace that the name stands for.
    """

    types: tuple[Type, ...]
    roots: tuple[Root, ...]
    operations: tuple[Operation, ...]
    aliases: tuple[tuple[str, str], ...]


def parse(document: bytes) -> Schema:
    """Return the schema that the `$metadata` document declares.

    Raise MetadataError if the document is not usable CSDL.
    """
    if len(document) > MAX_DOCUMENT:
        wrong = f"the document has {len(document):,} bytes, and the limit is {MAX_DOCUMENT:,}"
        raise MetadataError(1, wrong, "give the $metadata of one service")
    reader = _Reader()
    try:
        reader.parser.Parse(document, True)
    except expat.ExpatError as error:
        raise MetadataError(error.lineno, f"the XML is malformed ({error})", _DOWNLOAD) from None
    return reader.schema()


@dataclass(slots=True)
class _Type:
    """A type declaration that the parser is reading: its XML element has not ended yet.

    A type declaration keeps the spelling of names in the schema document.
    """

    line: int
    name: str
    base: str | None
    entity: bool
    open: bool
    has_stream: bool
    properties: list[tuple[int, Property]] = field(default_factory=list)
    navigations: list[tuple[int, Navigation]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Operation:
    line: int
    name: str
    action: bool
    bound: bool
    binds: TypeRef | None = None
    returns: TypeRef | None = None


class _Reader:
    """Parser that collects the declarations of a document, and then resolves the names in them."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate("utf-8", " ")
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self._path: list[str] = []
        self._namespace = ""
        self._aliases: dict[str, str] = {}
        self._capabilities = {_CAPABILITIES}
        self._types: dict[str, _Type] = {}
        self._values: set[str] = set()  # full names of enumerations and type definitions
        self._roots: dict[str, tuple[int, Root]] = {}
        self._operations: list[_Operation] = []
        self._type: _Type | None = None
        self._operation: _Operation | None = None
        self._target: str | None = None  # target of the annotations around the current element
        self._term_depth = 0  # depth of the ExpandRestrictions annotation around the current element
        self._not_expandable: set[tuple[str, str]] = set()
        self._seen_schema = False
        self._value_is_expandable = False

    # XML events

    def _refuse_doctype(self, *_: object) -> None:
        raise self._error(
            "the document has a <!DOCTYPE>",
            "remove the <!DOCTYPE>, because a CSDL document needs no DTD and no entities",
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        space, _, name = tag.rpartition(" ")
        self._path.append(name if space in (_EDM, _EDMX) else "")
        if len(self._path) > MAX_NESTING:
            raise self._error(f"elements are nested deeper than {MAX_NESTING}", _DOWNLOAD)
        if len(self._path) == 1 and (space, name) != (_EDMX, "Edmx"):
            raise self._error(
                f"the document begins with <{name[:MAX_NAME]}>", "give an OData v4 $metadata document"
            )
        if space == _EDMX and name == "Include":
            if attributes.get("Namespace") == _CAPABILITIES and "Alias" in attributes:
                self._capabilities.add(attributes["Alias"])
            return
        if space != _EDM:
            if name == "Schema":
                raise self._error(
                    "the schema is not of OData v4", "give the OData v4 $metadata of the service"
                )
            return
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, attributes)

    def _end(self, _: str) -> None:
        name = self._path.pop()
        depth = len(self._path)
        if depth < self._term_depth:
            self._term_depth = 0
        if name in ("EntityType", "ComplexType"):
            self._type = None
        elif name in ("Function", "Action"):
            self._operation = None
        elif name == "Annotations" or (name == "NavigationProperty" and self._type is not None):
            self._target = None

    def _text(self, text: str) -> None:
        if self._term_depth and self._path[-1] == "Bool" and self._path[-2] == "PropertyValue":
            self._note_expandable(text.strip())

    # Elements

    def _schema(self, attributes: dict[str, str]) -> None:
        self._seen_schema = True
        self._namespace = self._name(attributes, "Namespace", _QUALIFIED)
        if "Alias" in attributes:
            alias = self._name(attributes, "Alias", _SIMPLE)
            if self._aliases.setdefault(alias, self._namespace) != self._namespace:
                raise self._error(f"the alias {alias!r} refers to two namespaces", _DOWNLOAD)

    def _declare_type(self, attributes: dict[str, str], *, entity: bool) -> None:
        name = self._full_name(attributes)
        if name in self._types or name in self._values:
            raise self._error(f"the type {name!r} is declared twice", _DOWNLOAD)
        if len(self._types) == MAX_TYPES:
            raise self._error(
                f"the document has more than {MAX_TYPES:,} types", "give the $metadata of one service"
            )
        base = self._name(attributes, "BaseType", _QUALIFIED) if "BaseType" in attributes else None
        is_open, has_stream = attributes.get("OpenType") == "true", attributes.get("HasStream") == "true"
        self._type = _Type(self._line(), name, base, entity, is_open, has_stream)
        self._types[name] = self._type

    def _entity_type(self, attributes: dict[str, str]) -> None:
        self._declare_type(attributes, entity=True)

    def _complex_type(self, attributes: dict[str, str]) -> None:
        self._declare_type(attributes, entity=False)

    def _value_type(self, attributes: dict[str, str]) -> None:
        self._values.add(self._full_name(attributes))

    def _property(self, attributes: dict[str, str]) -> None:
        if self._type is not None:
            name = self._member_name(self._type, attributes)
            self._type.properties.append((self._line(), Property(name, self._type_ref(attributes))))

    def _navigation(self, attributes: dict[str, str]) -> None:
        if self._type is not None:
            name = self._member_name(self._type, attributes)
            contained = attributes.get("ContainsTarget") == "true"
            navigation = Navigation(name, self._type_ref(attributes), contained)
            self._type.navigations.append((self._line(), navigation))
            self._target = f"{self._type.name}/{name}"

    def _member_name(self, owner: _Type, attributes: dict[str, str]) -> str:
        name = self._name(attributes, "Name", _SIMPLE)
        if name.lower() in owner.names:
            raise self._error(
                f"type {owner.name!r} has two properties named {name!r} if letter case is ignored", _DOWNLOAD
            )
        owner.names.add(name.lower())
        return name

    def _declare_operation(self, attributes: dict[str, str], *, action: bool) -> None:
        bound = attributes.get("IsBound") == "true"
        self._operation = _Operation(self._line(), self._full_name(attributes), action, bound)
        self._operations.append(self._operation)

    def _function(self, attributes: dict[str, str]) -> None:
        self._declare_operation(attributes, action=False)

    def _action(self, attributes: dict[str, str]) -> None:
        self._declare_operation(attributes, action=True)

    def _parameter(self, attributes: dict[str, str]) -> None:
        """Store the type of a bound operation's first parameter, because the operation binds to this type."""
        operation = self._operation
        if operation is not None and operation.bound and operation.binds is None:
            operation.binds = self._type_ref(attributes)

    def _return_type(self, attributes: dict[str, str]) -> None:
        if self._operation is not None:
            self._operation.returns = self._type_ref(attributes)

    def _entity_set(self, attributes: dict[str, str]) -> None:
        self._root(attributes, TypeRef(self._name(attributes, "EntityType", _QUALIFIED), True))

    def _singleton(self, attributes: dict[str, str]) -> None:
        self._root(attributes, TypeRef(self._name(attributes, "Type", _QUALIFIED), False))

    def _root(self, attributes: dict[str, str], type_: TypeRef) -> None:
        name = self._name(attributes, "Name", _SIMPLE)
        if name.lower() in self._roots:
            raise self._error(f"the entity container has {name!r} twice if letter case is ignored", _DOWNLOAD)
        self._roots[name.lower()] = (self._line(), Root(name, type_))

    def _annotations(self, attributes: dict[str, str]) -> None:
        self._target = attributes.get("Target", "")

    def _annotation(self, attributes: dict[str, str]) -> None:
        space, _, term = attributes.get("Term", "").rpartition(".")
        if term == "ExpandRestrictions" and space in self._capabilities and not self._term_depth:
            self._term_depth = len(self._path)

    def _property_value(self, attributes: dict[str, str]) -> None:
        self._value_is_expandable = attributes.get("Property") == "Expandable"
        if self._term_depth:
            self._note_expandable(attributes.get("Bool", ""))

    def _note_expandable(self, value: str) -> None:
        if value == "false" and self._value_is_expandable and self._target is not None:
            owner, _, name = self._target.partition("/")
            self._not_expandable.add((owner, name))

    # Names, and the things that they refer to

    def _line(self) -> int:
        return self.parser.CurrentLineNumber

    def _error(self, wrong: str, remedy: str) -> MetadataError:
        return MetadataError(self._line(), wrong, remedy)

    def _name(self, attributes: dict[str, str], key: str, form: re.Pattern[str]) -> str:
        value = attributes.get(key)
        element = self._path[-1]
        if not value:
            raise self._error(f"<{element}> has no {key}", _DOWNLOAD)
        if len(value) > MAX_NAME:
            raise self._error(f"{key} of <{element}> is longer than {MAX_NAME} characters", _DOWNLOAD)
        if form.fullmatch(value) is None:
            wrong = f"{key} of <{element}> is {value!a}, which is not a name"
            raise self._error(wrong, "use ASCII letters, digits and underscores, beginning with a letter")
        return value

    def _full_name(self, attributes: dict[str, str]) -> str:
        name = f"{self._namespace}.{self._name(attributes, 'Name', _SIMPLE)}"
        if len(name) > MAX_NAME:
            raise self._error(f"a name with its namespace is longer than {MAX_NAME} characters", _DOWNLOAD)
        return name

    def _type_ref(self, attributes: dict[str, str]) -> TypeRef:
        written = attributes.get("Type", "")
        collection = _COLLECTION.fullmatch(written)
        name = self._name({"Type": written if collection is None else collection[1]}, "Type", _QUALIFIED)
        return TypeRef(name, collection is not None)

    def _resolved_name(self, name: str) -> str:
        space, _, simple = name.rpartition(".")
        return f"{self._aliases.get(space, space)}.{simple}"

    def _structured(self, line: int, name: str, use: str) -> str:
        """Return the full name of an entity type or complex type that the document declares."""
        full = self._resolved_name(name)
        if full not in self._types:
            wrong = f"{use} {name!r} is not a type that this document declares"
            raise MetadataError(line, wrong, "give the complete $metadata of the service")
        return full

    def _any_type(self, line: int, type_: TypeRef, use: str) -> TypeRef:
        full = self._resolved_name(type_.name)
        if not full.startswith("Edm.") and full not in self._values:
            full = self._structured(line, type_.name, use)
        return TypeRef(full, type_.collection)

    def schema(self) -> Schema:
        """Return all declarations of the document, with namespaces in all names.

        Raise MetadataError if the document uses a name that it does not declare.
        """
        if not self._seen_schema:
            raise self._error("the document has no <Schema>", _DOWNLOAD)
        bases = {
            name: None if each.base is None else self._structured(each.line, each.base, "the base type")
            for name, each in self._types.items()
        }
        for name, each in self._types.items():
            self._check_bases(name, each.line, bases)
        closed = {(self._resolved_name(owner), name) for owner, name in self._not_expandable}
        types = tuple(self._resolved_type(each, bases[each.name], closed) for each in self._types.values())
        folded = {each.name.lower() for each in types}
        if len(folded) < len(types):
            raise self._error("two types have names that differ only in letter case", _DOWNLOAD)
        return Schema(
            types, self._resolved_roots(), self._resolved_operations(), tuple(self._aliases.items())
        )

    def _check_bases(self, name: str, line: int, bases: dict[str, str | None]) -> None:
        seen = {name}
        base = bases[name]
        while base is not None:
            if base in seen:
                raise MetadataError(line, f"the base types of {name!r} form a cycle", _DOWNLOAD)
            if len(seen) > MAX_BASE_TYPES:
                wrong = f"{name!r} has more than {MAX_BASE_TYPES} base types above it"
                raise MetadataError(line, wrong, _DOWNLOAD)
            seen.add(base)
            base = bases[base]

    def _resolved_type(self, each: _Type, base: str | None, closed: set[tuple[str, str]]) -> Type:
        properties = tuple(
            Property(one.name, self._any_type(line, one.type, "the type of a property,"))
            for line, one in each.properties
        )
        navigations = tuple(
            replace(
                one,
                type=TypeRef(self._structured(line, one.type.name, "the target"), one.type.collection),
                expandable=(each.name, one.name) not in closed,
            )
            for line, one in each.navigations
        )
        return Type(each.name, base, each.entity, each.open, each.has_stream, properties, navigations)

    def _resolved_roots(self) -> tuple[Root, ...]:
        return tuple(
            Root(one.name, TypeRef(self._structured(line, one.type.name, "the type"), one.type.collection))
            for line, one in self._roots.values()
        )

    def _resolved_operations(self) -> tuple[Operation, ...]:
        found = []
        for one in self._operations:
            if one.bound and one.binds is None:
                wrong = f"{one.name!r} is bound and has no parameter"
                raise MetadataError(one.line, wrong, _DOWNLOAD)
            binds = one.binds and self._any_type(one.line, one.binds, "the binding type")
            returns = one.returns and self._any_type(one.line, one.returns, "the return type")
            found.append(Operation(one.name, one.action, binds, returns))
        return tuple(found)


_HANDLERS: Final = {
    "Schema": _Reader._schema,
    "EntityType": _Reader._entity_type,
    "ComplexType": _Reader._complex_type,
    "EnumType": _Reader._value_type,
    "TypeDefinition": _Reader._value_type,
    "Property": _Reader._property,
    "NavigationProperty": _Reader._navigation,
    "Function": _Reader._function,
    "Action": _Reader._action,
    "Parameter": _Reader._parameter,
    "ReturnType": _Reader._return_type,
    "EntitySet": _Reader._entity_set,
    "Singleton": _Reader._singleton,
    "Annotations": _Reader._annotations,
    "Annotation": _Reader._annotation,
    "PropertyValue": _Reader._property_value,
}
