"""The schema of a graph API, in a flat binary form that loads fast."""

from __future__ import annotations

import re
import sys
from array import array
from hashlib import sha256
from typing import Final

MAGIC: Final = b"GWMODEL1"
MAX_BYTES: Final = 16 * 1024 * 1024  # highest size of a flat form; Microsoft Graph's v1.0 schema has 0.4 MB
MAX_BASE_TYPES: Final = 32  # highest number of base types above one type

# Words of each row. The header has the number of names, and of rows of each table. Rows are sorted by their
# names. Types with the same name are sorted by their namespaces, and operations by their binding types.
HEADER_WORDS: Final = 7  # names, bytes of names, namespaces, types, members, roots, operations
SPACE_WORDS: Final = 2  # name; namespace that the name stands for
TYPE_WORDS: Final = 5  # name, namespace, base type + 1, flags, first member
MEMBER_WORDS: Final = 3  # name, flags, type + 1
ROOT_WORDS: Final = 3  # name, flags, type + 1
OPERATION_WORDS: Final = 5  # name, namespace, flags, binding type + 1, returned type + 1

# Flags of types.
ENTITY: Final = 1
OPEN: Final = 2
MEDIA: Final = 4  # the entity is a stream too
# Flags of members, roots and operations.
COLLECTION: Final = 1  # the member or root leads to a collection, or the operation returns one
NAVIGATION: Final = 2
CONTAINED: Final = 4
EXPANDABLE: Final = 8
STREAM: Final = 16
ACTION: Final = 2
BOUND: Final = 4
BOUND_TO_COLLECTION: Final = 8

_NO: Final = -1
_TYPE_FLAGS: Final = ENTITY | OPEN | MEDIA
_MEMBER_FLAGS: Final = COLLECTION | NAVIGATION | CONTAINED | EXPANDABLE | STREAM
_OPERATION_FLAGS: Final = COLLECTION | ACTION | BOUND | BOUND_TO_COLLECTION
_NAMES: Final = re.compile(rb"[A-Za-z0-9_.]*")


class DamagedModel(ValueError):
    """Error because the given bytes are not the flat binary form of a graph API's schema."""


def digest_of(data: bytes) -> str:
    """Return the SHA-256 digest that identifies a schema in flat binary form."""
    return sha256(data).hexdigest()


class ResourceModel:
    """Schema of a graph API, whose tables are arrays of 32-bit words inside the loaded bytes.

    The table of derived types is built only when a rule needs it. The table of the types that have members of
    another type is also built only then. A row number in the model's tables identifies each type, member,
    root and operation. The number -1 stands for a missing row.
    """

    __slots__ = (
        "_blob",
        "_derived",
        "_ends",
        "_holders",
        "_ids",
        "_members",
        "_operations",
        "_roots",
        "_spaces",
        "_types",
        "_words",
        "digest",
        "members",
        "names",
        "operations",
        "roots",
        "spaces",
        "types",
    )

    def __init__(self, data: bytes, digest: str) -> None:
        """Load a schema from its flat binary form.

        Raise DamagedModel if the bytes are not a schema in flat form, or do not have the given digest.
        """
        if len(data) > MAX_BYTES or digest_of(data) != digest:
            raise DamagedModel("the digest of the schema differs from the expected digest")
        start = len(MAGIC)
        if data[:start] != MAGIC or len(data) < start + 4 * HEADER_WORDS:
            raise DamagedModel("the bytes are not a schema in the format of this release")
        header = _words_of(data[start : start + 4 * HEADER_WORDS])
        self.digest: Final[str] = digest
        self.names: Final[int] = header[0]
        self.spaces: Final[int] = header[2]
        self.types: Final[int] = header[3]
        self.members: Final[int] = header[4]
        self.roots: Final[int] = header[5]
        self.operations: Final[int] = header[6]
        self._ends: Final[int] = 0
        self._spaces: Final[int] = self.names
        self._types: Final[int] = self._spaces + SPACE_WORDS * self.spaces
        self._members: Final[int] = self._types + TYPE_WORDS * self.types
        self._roots: Final[int] = self._members + MEMBER_WORDS * self.members
        self._operations: Final[int] = self._roots + ROOT_WORDS * self.roots
        words = self._operations + OPERATION_WORDS * self.operations
        start += 4 * HEADER_WORDS
        if len(data) != start + 4 * words + header[1]:
            raise DamagedModel("the size of the schema in bytes does not match the sizes of its tables")
        if not self.names:
            raise DamagedModel("the schema is empty")
        self._words: Final[memoryview] = _words_of(data[start : start + 4 * words])
        self._blob: Final[bytes] = data[start + 4 * words :]
        self._ids: Final[dict[str, int]] = self._read_names()
        self._derived: dict[int, list[int]] | None = None
        self._holders: dict[int, list[int]] | None = None
        self._check_spaces()
        self._check_types()
        self._check_members()
        self._check_roots()
        self._check_operations()

    # Lookups by name.

    def name_id(self, folded: str) -> int:
        """Return the number of a lower-case name in the schema's table of names."""
        return self._ids.get(folded, _NO)

    def type_of(self, folded: str) -> int:
        """Return the schema type with this full name in lower case; an alias may replace the namespace."""
        space, _, simple = folded.rpartition(".")
        return self._type_of(self._space_of(space), self.name_id(simple))

    def has_space_of(self, folded: str) -> bool:
        """Return True if a full name begins with a namespace of the schema or an alias of a namespace."""
        return self._space_of(folded.rpartition(".")[0]) >= 0

    def names_space_of(self, folded: str, operation: int) -> bool:
        """Return True if a full name begins with the namespace in which the schema declares the operation."""
        return self._space_of(folded.rpartition(".")[0]) == self.operation_space(operation)

    def types_named(self, folded: str) -> tuple[int, ...]:
        """Return all schema types with the given lower-case name, in any namespace."""
        name = self.name_id(folded)
        first = self._first(self._types, TYPE_WORDS, 0, self.types, name)
        last = first
        while last < self.types and self._words[self._types + TYPE_WORDS * last] == name:
            last += 1
        return tuple(range(first, last))

    def member_of(self, type_: int, name: int) -> tuple[int, int]:
        """Return the type that declares the member of the given name, and the table row of the member.

        The declaring type is the given type or one of its base types.
        """
        words = self._words
        while type_ >= 0:
            end = self._end_of(type_)
            start = words[self._types + TYPE_WORDS * type_ + 4]
            member = self._first(self._members, MEMBER_WORDS, start, end, name)
            if member < end and words[self._members + MEMBER_WORDS * member] == name:
                return type_, member
            type_ = words[self._types + TYPE_WORDS * type_ + 2] - 1
        return _NO, _NO

    def members_of(self, type_: int) -> tuple[int, int]:
        """Return the range of rows of a type's members, without the members that the type inherits."""
        return self._words[self._types + TYPE_WORDS * type_ + 4], self._end_of(type_)

    def derived_of(self, type_: int) -> list[int]:
        """Return the schema types that have the given type as their base type."""
        derived = self._derived
        if derived is None:
            derived = {}
            for each in range(self.types):
                base = self.base_of(each)
                if base >= 0:
                    derived.setdefault(base, []).append(each)
            self._derived = derived
        return derived.get(type_, [])

    def holders_of(self, type_: int) -> list[int]:
        """Return the schema types that declare a member of the given type."""
        holders = self._holders
        if holders is None:
            holders = {}
            for owner in range(self.types):
                first, end = self.members_of(owner)
                for member in range(first, end):
                    target = self.member_type(member)
                    if target >= 0:
                        holders.setdefault(target, []).append(owner)
            self._holders = holders
        return holders.get(type_, [])

    def root_of(self, name: int) -> int:
        root = self._first(self._roots, ROOT_WORDS, 0, self.roots, name)
        return root if root < self.roots and self._words[self._roots + ROOT_WORDS * root] == name else _NO

    def operations_of(self, name: int) -> tuple[int, int]:
        """Return the range of table rows that hold the schema's operations with the given name."""
        first = self._first(self._operations, OPERATION_WORDS, 0, self.operations, name)
        return first, self._first(self._operations, OPERATION_WORDS, first, self.operations, name + 1)

    def operations_bound_to(self, type_: int, first: int, last: int) -> tuple[int, int]:
        """Return the range of table rows of the operations with the given name and the given bound type."""
        column = self._operations + 3
        first = self._first(column, OPERATION_WORDS, first, last, type_ + 1)
        return first, self._first(column, OPERATION_WORDS, first, last, type_ + 2)

    # Columns of rows.

    def base_of(self, type_: int) -> int:
        return self._words[self._types + TYPE_WORDS * type_ + 2] - 1

    def type_flags(self, type_: int) -> int:
        return self._words[self._types + TYPE_WORDS * type_ + 3]

    def distance(self, type_: int, base: int) -> int:
        """Return how many derivation steps lead from a type to `base`; -1 if `base` is not a base type."""
        steps = 0
        while type_ >= 0:
            if type_ == base:
                return steps
            type_ = self._words[self._types + TYPE_WORDS * type_ + 2] - 1
            steps += 1
        return _NO

    def member_flags(self, member: int) -> int:
        return self._words[self._members + MEMBER_WORDS * member + 1]

    def member_type(self, member: int) -> int:
        return self._words[self._members + MEMBER_WORDS * member + 2] - 1

    def root_flags(self, root: int) -> int:
        return self._words[self._roots + ROOT_WORDS * root + 1]

    def root_type(self, root: int) -> int:
        return self._words[self._roots + ROOT_WORDS * root + 2] - 1

    def operation_space(self, operation: int) -> int:
        return self._words[self._operations + OPERATION_WORDS * operation + 1]

    def operation_flags(self, operation: int) -> int:
        return self._words[self._operations + OPERATION_WORDS * operation + 2]

    def operation_binds(self, operation: int) -> int:
        return self._words[self._operations + OPERATION_WORDS * operation + 3] - 1

    def operation_returns(self, operation: int) -> int:
        return self._words[self._operations + OPERATION_WORDS * operation + 4] - 1

    # Names of rows, for people.

    def name(self, name: int) -> str:
        """Return the schema's name with this number, in one of the spellings that the schema contains."""
        start = self._words[name - 1] if name else 0
        return self._blob[start : self._words[name]].decode("ascii")

    def type_name(self, type_: int) -> str:
        at = self._types + TYPE_WORDS * type_
        space = self._words[self._spaces + SPACE_WORDS * self._words[at + 1]]
        return f"{self.name(space)}.{self.name(self._words[at])}"

    def member_name(self, member: int) -> str:
        return self.name(self._words[self._members + MEMBER_WORDS * member])

    def root_name(self, root: int) -> str:
        return self.name(self._words[self._roots + ROOT_WORDS * root])

    def operation_name(self, operation: int) -> str:
        return self.name(self._words[self._operations + OPERATION_WORDS * operation])

    # The tables.

    def _space_of(self, folded: str) -> int:
        """Return the schema's namespace to which a name or an alias refers."""
        name = self.name_id(folded)
        space = self._first(self._spaces, SPACE_WORDS, 0, self.spaces, name)
        at = self._spaces + SPACE_WORDS * space
        if name < 0 or space == self.spaces or self._words[at] != name:
            return _NO
        return self._words[at + 1]

    def _type_of(self, space: int, name: int) -> int:
        if space < 0 or name < 0:
            return _NO
        type_ = self._first(self._types, TYPE_WORDS, 0, self.types, name)
        while type_ < self.types:
            at = self._types + TYPE_WORDS * type_
            if self._words[at] != name:
                break
            if self._words[at + 1] == space:
                return type_
            type_ += 1
        return _NO

    def _first(self, table: int, width: int, low: int, high: int, name: int) -> int:
        """Return the first table row from `low` to `high` whose name is not less than `name`."""
        words = self._words
        while low < high:
            middle = (low + high) >> 1
            found: int = words[table + width * middle]
            if found < name:
                low = middle + 1
            else:
                high = middle
        return low

    def _end_of(self, type_: int) -> int:
        """Return the table row after the last member of a type."""
        if type_ + 1 == self.types:
            return self.members
        return self._words[self._types + TYPE_WORDS * type_ + TYPE_WORDS + 4]

    # Checks of the bytes: each number must refer to a row, and rows must be in the order that lookups need.

    def _read_names(self) -> dict[str, int]:
        if _NAMES.fullmatch(self._blob) is None:
            raise DamagedModel(
                "a name of the schema has characters other than letters, digits, dots and underscores"
            )
        folded = self._blob.decode("ascii").lower()
        ids: dict[str, int] = {}
        start = 0
        before = ""
        for number in range(self.names):
            end: int = self._words[number]
            if end <= start or end > len(folded):
                raise DamagedModel(f"name {number} of the schema has an invalid position")
            name = folded[start:end]
            if name <= before:
                raise DamagedModel(
                    f"name {number} of the schema is not in its place in the order of the names"
                )
            ids[name] = number
            start, before = end, name
        if start != len(folded):
            raise DamagedModel("the schema has bytes after its names")
        return ids

    def _check_spaces(self) -> None:
        words, before = self._words, _NO
        for space in range(self.spaces):
            at = self._spaces + SPACE_WORDS * space
            name: int = words[at]
            target: int = words[at + 1]
            if name >= self.names or name <= before or target >= self.spaces:
                raise DamagedModel(
                    f"namespace {space} of the schema has an invalid reference, or is not in its place in the"
                    " order of the namespaces"
                )
            before = name
        for space in range(self.spaces):
            target = words[self._spaces + SPACE_WORDS * space + 1]
            if words[self._spaces + SPACE_WORDS * target + 1] != target:
                raise DamagedModel(f"namespace {space} of the schema is an alias of another alias")

    def _check_types(self) -> None:
        words, before, members = self._words, _NO, 0
        for type_ in range(self.types):
            at = self._types + TYPE_WORDS * type_
            name: int = words[at]
            space: int = words[at + 1]
            base: int = words[at + 2]
            flags: int = words[at + 3]
            first: int = words[at + 4]
            order = name * self.spaces + space
            if name >= self.names or space >= self.spaces or order <= before:
                raise DamagedModel(
                    f"type {type_} of the schema has an invalid reference, or is not in its place in"
                    " the order of the types"
                )
            if base > self.types or flags & ~_TYPE_FLAGS or first < members or first > self.members:
                raise DamagedModel(f"type {type_} of the schema has an invalid reference")
            before, members = order, first
        if self.members and (not self.types or words[self._types + 4]):
            raise DamagedModel("the schema has properties that belong to no type")
        for type_ in range(self.types):
            up, steps = self.base_of(type_), 0
            while up >= 0:
                steps += 1
                if steps > MAX_BASE_TYPES:
                    raise DamagedModel(f"type {type_} of the schema has too many base types")
                up = self.base_of(up)

    def _check_members(self) -> None:
        words, member = self._words, 0
        for type_ in range(self.types):
            end, before = self._end_of(type_), _NO
            while member < end:
                at = self._members + MEMBER_WORDS * member
                name: int = words[at]
                flags: int = words[at + 1]
                target: int = words[at + 2]
                if name >= self.names or name <= before or flags & ~_MEMBER_FLAGS or target > self.types:
                    raise DamagedModel(
                        f"property {member} of the schema has an invalid reference, or is not in its place"
                        " in the order of the properties"
                    )
                if flags & NAVIGATION and not target:
                    raise DamagedModel(f"navigation property {member} of the schema has no target type")
                before = name
                member += 1

    def _check_roots(self) -> None:
        words, before = self._words, _NO
        for root in range(self.roots):
            at = self._roots + ROOT_WORDS * root
            name: int = words[at]
            flags: int = words[at + 1]
            type_: int = words[at + 2]
            if name >= self.names or name <= before or flags & ~COLLECTION or not 0 < type_ <= self.types:
                raise DamagedModel(
                    f"root {root} of the schema has an invalid reference, or is not in its place in the"
                    " order of the roots"
                )
            before = name

    def _check_operations(self) -> None:
        words, before = self._words, 0
        width = self.types + 1
        for operation in range(self.operations):
            at = self._operations + OPERATION_WORDS * operation
            name: int = words[at]
            space: int = words[at + 1]
            flags: int = words[at + 2]
            order = name * width + words[at + 3]
            if name >= self.names or order < before or space >= self.spaces or flags & ~_OPERATION_FLAGS:
                raise DamagedModel(
                    f"operation {operation} of the schema has an invalid reference, or is not in its place in"
                    " the order of the operations"
                )
            if words[at + 3] > self.types or words[at + 4] > self.types:
                raise DamagedModel(f"operation {operation} of the schema has an invalid reference")
            before = order


def _words_of(data: bytes) -> memoryview:
    """Return the 32-bit words that the bytes encode in little-endian order, for this machine to read."""
    if sys.byteorder == "big":
        swapped = array("I", data)
        swapped.byteswap()
        data = swapped.tobytes()
    return memoryview(data).cast("I")
