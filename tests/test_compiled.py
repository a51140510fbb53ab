"""Tests of the rules in ARCHITECTURE.md, "Compiled code", for the modules that pyproject.toml lists.

A violation of the rules for compiled code often appears late: as a TypeError in one request, or as memory
that is never freed. Each rule is a function that yields the places that break the rule. Each rule also runs
on code samples that break the rule.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent

# Attributes of compiled classes whose type is a typing.Protocol, and why the slow call (18 ns instead of 1)
# is harmless there. Remove an entry with its attribute. Do not add entries: use a base class.
PROTOCOL_ATTRIBUTES: Final = {
    "proxy.server.loop.deadlines.Deadlines._parts": "called for a deadline that is due, not for each request",
    "proxy.server.upstream.credentials.UpstreamCredential.waiting": "called after a token is renewed",
}
# Modules that make weak references, and the class of the instances. That class must not be compiled.
WEAKLY_REFERENCED: Final = {"proxy.server.callers.rulebook": "proxy.policy.paths.PathTree"}

# Parts of a module that is not compiled which the rules use: classes with a base, and weak references.
MATTERS_INTERPRETED: Final = re.compile(r"^ *class \w+\(|weakref", re.M)

MADE_BY_LIBRARIES: Final = ("msgspec", "pydantic", "pydantic_settings")
PROTOCOLS: Final = ("typing.Protocol", "typing_extensions.Protocol")
GENERICS: Final = ("typing.Generic", "typing_extensions.Generic", *PROTOCOLS)

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass
class Module:
    """A source file: its syntax tree, its classes, and the full names of its classes and imports."""

    name: str
    tree: ast.Module
    classes: list[ast.ClassDef]
    names: dict[str, str]

    def full_name(self, node: ast.expr) -> str:
        """Return the full name of an expression, such as `typing.Generic` for `Generic[T]`.

        Return an empty text if the name is unknown.
        """
        if isinstance(node, ast.Subscript | ast.Call):
            return self.full_name(node.value if isinstance(node, ast.Subscript) else node.func)
        if isinstance(node, ast.Attribute):
            before = self.full_name(node.value)
            return f"{before}.{node.attr}" if before else ""
        return self.names.get(node.id, "") if isinstance(node, ast.Name) else ""

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))


@dataclass
class Program:
    """All modules, the compiled modules, and the permitted exceptions to the rules for compiled code."""

    modules: dict[str, Module]
    compiled: frozenset[str]
    protocol_attributes: Mapping[str, str] = field(default_factory=dict)
    weakly_referenced: Mapping[str, str] = field(default_factory=dict)

    def compiled_modules(self) -> Iterator[Module]:
        return (self.modules[name] for name in sorted(self.compiled))

    def all_classes(self) -> dict[str, list[str]]:
        """Return the full names of the base classes of each class."""
        return {
            f"{module.name}.{each.name}": [module.full_name(base) for base in each.bases]
            for module in self.modules.values()
            for each in module.classes
        }


def parsed(name: str, text: str) -> Module:
    tree = ast.parse(text, name)
    names: dict[str, str] = {}
    classes = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.append(node)
            names[node.name] = f"{name}.{node.name}"
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
    return Module(name, tree, classes, names)


def _module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _modules_to_compile() -> list[str]:
    """Return the modules that `./dev compile` gives to mypyc."""
    loader = SourceFileLoader("dev", str(ROOT / "dev"))
    spec = spec_from_loader("dev", loader)
    assert spec is not None
    dev = module_from_spec(spec)
    loader.exec_module(dev)
    found: list[str] = dev.modules_to_compile()
    return found


@cache
def sources() -> Program:
    compiled = frozenset(map(_module_name, _modules_to_compile()))
    modules = {}
    for top in ("proxy", "controlplane", "tests", "bench"):
        for file in sorted((ROOT / top).rglob("*.py")):
            name, text = _module_name(file.relative_to(ROOT).as_posix()), file.read_text("utf-8")
            if name in compiled or MATTERS_INTERPRETED.search(text):
                modules[name] = parsed(name, text)
    return Program(modules, compiled, PROTOCOL_ATTRIBUTES, WEAKLY_REFERENCED)


def one_name_for_two_exceptions(program: Program) -> Iterator[str]:
    """Yield exception names that two `except` clauses share: mypyc gives both the first clause's type."""
    for module in program.compiled_modules():
        for function in module.functions():
            types: dict[str, str] = {}
            for handler in ast.walk(function):
                if isinstance(handler, ast.ExceptHandler) and handler.name is not None:
                    caught = ast.unparse(handler.type) if handler.type is not None else ""
                    if types.setdefault(handler.name, caught) != caught:
                        yield f"{module.name}:{handler.lineno}: {function.name}: {handler.name}"


def classes_that_need_annotations(program: Program) -> Iterator[str]:
    """Yield classes whose annotations msgspec or pydantic reads: a compiled class keeps no annotations."""
    bases = program.all_classes()

    def made_by_a_library(name: str) -> bool:
        return name.partition(".")[0] in MADE_BY_LIBRARIES or any(map(made_by_a_library, bases.get(name, ())))

    for module in program.compiled_modules():
        for each in module.classes:
            used = [module.full_name(node) for node in (*each.bases, *each.decorator_list)]
            if any(map(made_by_a_library, used)):
                yield f"{module.name}.{each.name}"


def generic_data_classes(program: Program) -> Iterator[str]:
    """Yield data classes that have type parameters: mypyc does not compile them."""
    for module in program.compiled_modules():
        for each in module.classes:
            decorators = map(module.full_name, each.decorator_list)
            generic = getattr(each, "type_params", []) or [
                base for base in each.bases if module.full_name(base) in GENERICS
            ]
            if generic and "dataclasses.dataclass" in decorators:
                yield f"{module.name}.{each.name}"


def named_tuples_of_objects(program: Program) -> Iterator[str]:
    """Yield named tuples with an attribute of the type `object`: mypyc fails to import them.

    Write `Any` instead of `object` in the annotation of the attribute.
    """
    for module in program.compiled_modules():
        for each in module.classes:
            if "typing.NamedTuple" in map(module.full_name, each.bases):
                for name, annotation in _attributes(each):
                    if isinstance(annotation, ast.Name) and annotation.id == "object":
                        yield f"{module.name}.{each.name}.{name}"


def jumps_out_of_a_clean_up(program: Program) -> Iterator[str]:
    """Yield each `break` or `continue` that leaves a `with` or `try … finally`: mypyc can't compile it."""
    for module in program.compiled_modules():
        for line in _jumps(module.tree, leaves=False):
            yield f"{module.name}:{line}"


def _jumps(node: ast.AST, *, leaves: bool) -> Iterator[int]:
    """Yield the lines of `break` and `continue` that leave a clean-up block of a loop.

    `leaves` is True if `node` is inside a clean-up block of the loop.
    """
    loop = isinstance(node, ast.For | ast.AsyncFor | ast.While)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.Break | ast.Continue):
                if leaves and not (loop and name == "body"):
                    yield child.lineno
            elif isinstance(child, ast.AST):
                starts_anew = isinstance(child, Function | ast.ClassDef) or (loop and name == "body")
                cleans_up = isinstance(child, ast.With | ast.AsyncWith) or bool(
                    isinstance(child, ast.Try) and child.finalbody
                )
                yield from _jumps(child, leaves=cleans_up or (leaves and not starts_anew))


def attributes_with_the_type_of_a_protocol(program: Program) -> Iterator[str]:
    """Yield attributes that have the type of a typing.Protocol.

    A method call through an attribute with a protocol type takes 18 ns instead of 1 ns, because the call
    finds the method by name.
    """
    protocols = {name for name, bases in program.all_classes().items() if set(bases) & set(PROTOCOLS)}
    found = {
        f"{module.name}.{each.name}.{attribute}"
        for module in program.compiled_modules()
        for each in module.classes
        for attribute, annotation in _attributes(each)
        if any(module.full_name(node) in protocols for node in _names_in(annotation))
    }
    yield from sorted(found - set(program.protocol_attributes))
    for gone in sorted(set(program.protocol_attributes) - found):
        yield f"{gone} is not of a protocol's type any more: remove it from PROTOCOL_ATTRIBUTES"


def _attributes(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes of a class and their annotations.

    An attribute to which a method assigns one of its arguments has the annotation of that argument.
    """
    for statement in owner.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.annotation
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*statement.args.posonlyargs, *statement.args.args, *statement.args.kwonlyargs]
            given = {each.arg: each.annotation for each in arguments}
            for node in ast.walk(statement):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                    yield node.target.attr, node.annotation
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                    annotation = given.get(node.value.id)
                    for target in node.targets:
                        if isinstance(target, ast.Attribute) and annotation is not None:
                            yield target.attr, annotation


def _names_in(annotation: ast.expr) -> Iterator[ast.expr]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _names_in(ast.parse(node.value, mode="eval").body)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield node


def interpreted_classes_with_a_compiled_base(program: Program) -> Iterator[str]:
    """Yield interpreted classes of which no instance can be made, because a base class is compiled.

    Making an instance of an interpreted class with a compiled base raises TypeError.
    """
    compiled = {
        f"{module.name}.{each.name}" for module in program.compiled_modules() for each in module.classes
    }
    for name, bases in program.all_classes().items():
        if name not in compiled:
            yield from (f"{name} is derived from {base}" for base in bases if base in compiled)


def weak_references(program: Program) -> Iterator[str]:
    """Yield weak references to instances of compiled classes.

    Creating a weak reference to an instance of a compiled class raises TypeError.
    """
    makers = {module.name for module in program.modules.values() if _imports(module, "weakref")}
    known = program.weakly_referenced
    yield from (f"{name} makes weak references: list the class" for name in sorted(makers - set(known)))
    yield from (f"{name} makes none: remove it from the list" for name in sorted(set(known) - makers))
    classes = program.all_classes()
    for referenced in known.values():
        if referenced not in classes or referenced.rpartition(".")[0] in program.compiled:
            yield f"{referenced} is compiled, or is no class"


def _imports(module: Module, name: str) -> bool:
    return any(full.partition(".")[0] == name for full in module.names.values())


def functions_that_hold_each_other(program: Program) -> Iterator[str]:
    """Yield nested functions that refer to themselves or to each other, which makes a reference cycle.

    Only Python's garbage collector frees a reference cycle, and workers exempt their compiled rules from
    collection.
    """
    for module in program.compiled_modules():
        for outer in module.functions():
            inner = [node for node in _within(outer) if isinstance(node, Function)]
            made = {name for node in _within(outer) for name in _functions_bound_by(node)}
            for function in inner:
                for name in sorted(made & _names_from_outside(function)):
                    yield f"{module.name}:{function.lineno}: {outer.name}: {name}"


def _within(outer: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without the nodes of nested functions."""
    for child in ast.iter_child_nodes(outer):
        yield child
        if not isinstance(child, Function | ast.ClassDef):
            yield from _within(child)


def _functions_bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(part, ast.Lambda) for part in (node.value, *ast.iter_child_nodes(node.value))):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _names_from_outside(function: Function) -> set[str]:
    nodes = list(ast.walk(function))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {node.id for node in names if isinstance(node.ctx, ast.Load)} - own


Rule = Callable[[Program], Iterator[str]]
RULES: Final[tuple[Rule, ...]] = (
    one_name_for_two_exceptions,
    classes_that_need_annotations,
    generic_data_classes,
    named_tuples_of_objects,
    jumps_out_of_a_clean_up,
    attributes_with_the_type_of_a_protocol,
    interpreted_classes_with_a_compiled_base,
    weak_references,
    functions_that_hold_each_other,
)


def test_an_exception_from_compiling_is_a_module_of_a_compiled_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["graphward"]
    for file in settings["interpreted"]:
        assert (ROOT / file).is_file(), file
        assert file.startswith(tuple(f"{name}/" for name in settings["compiled"])), file


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_compiled_code_has_no(rule: Rule) -> None:
    assert list(rule(sources())) == []


# For each rule: the compiled module, another module that is not compiled, and the number of violations.
SAMPLES: Final[tuple[tuple[Rule, str, str, int], ...]] = (
    (
        one_name_for_two_exceptions,
        """
def f():
    try:
        pass
    except ValueError as error:
        pass
    except OSError as error:
        pass
""",
        "",
        1,
    ),
    (
        one_name_for_two_exceptions,
        """
def f():
    try:
        pass
    except ValueError as error:
        pass

def g():
    try:
        pass
    except OSError as error:
        pass
""",
        "",
        0,
    ),
    (classes_that_need_annotations, "import msgspec\nclass A(msgspec.Struct): ...", "", 1),
    (classes_that_need_annotations, "from pydantic import BaseModel as B\nclass A(B): ...", "", 1),
    (
        classes_that_need_annotations,
        "from proxy.slow import B\nclass A(B): ...",
        "from msgspec import Struct\nclass B(Struct, frozen=True): ...",
        1,
    ),
    (
        classes_that_need_annotations,
        "from pydantic.dataclasses import dataclass\n@dataclass(frozen=True)\nclass A: ...",
        "",
        1,
    ),
    (classes_that_need_annotations, "import msgspec\nclass A:\n    at: msgspec.Raw", "", 0),
    (
        generic_data_classes,
        "from dataclasses import dataclass\nfrom typing import Generic\n@dataclass\nclass A(Generic[T]): ...",
        "",
        1,
    ),
    (
        generic_data_classes,
        "import dataclasses, typing\n@dataclasses.dataclass(slots=True)\nclass A(typing.Generic[T]): ...",
        "",
        1,
    ),
    (
        generic_data_classes,
        "from typing import Generic, NamedTuple\nclass A(NamedTuple, Generic[T]): ...",
        "",
        0,
    ),
    (named_tuples_of_objects, "from typing import NamedTuple\nclass A(NamedTuple):\n    at: object", "", 1),
    (named_tuples_of_objects, "import typing as t\nclass A(t.NamedTuple):\n    at: object = None", "", 1),
    (
        named_tuples_of_objects,
        "from typing import NamedTuple\nclass A(NamedTuple):\n    at: list[object]",
        "",
        0,
    ),
    (jumps_out_of_a_clean_up, "for x in y:\n    with x:\n        break", "", 1),
    (jumps_out_of_a_clean_up, "async def f():\n  while 1:\n    async with x:\n      if y: continue", "", 1),
    (
        jumps_out_of_a_clean_up,
        """
while True:
    try:
        break
    except OSError:
        continue
    finally:
        f()
""",
        "",
        2,
    ),
    (
        jumps_out_of_a_clean_up,
        """
for x in y:
    with x:
        for z in x:
            pass
        else:
            break
""",
        "",
        1,
    ),
    (jumps_out_of_a_clean_up, "with x:\n    for y in x:\n        if y: break", "", 0),
    (
        jumps_out_of_a_clean_up,
        "for x in y:\n    try:\n        continue\n    except OSError:\n        break",
        "",
        0,
    ),
    (jumps_out_of_a_clean_up, "with x:\n    def f():\n        for y in x:\n            break", "", 0),
    (
        attributes_with_the_type_of_a_protocol,
        "from proxy.slow import P\nclass A:\n    one: P\n    def f(self, x):\n        self.two: list[P] = []",
        "from typing import Protocol\nclass P(Protocol): ...",
        2,
    ),
    (
        attributes_with_the_type_of_a_protocol,
        """
from proxy import slow
class A:
    def __init__(self, x: 'slow.P | None', y: int) -> None:
        self.x = x
        self.y = y
""",
        "from typing import Protocol\nclass P(Protocol[T]): ...",
        1,
    ),
    (
        attributes_with_the_type_of_a_protocol,
        "from proxy.slow import P\nclass A:\n    def f(self, x: P) -> None: ...\nclass B(A):\n    a: A",
        "import asyncio\nclass P(asyncio.Protocol): ...",
        0,
    ),
    (
        interpreted_classes_with_a_compiled_base,
        "class A: ...\nclass B(A): ...",
        "from proxy.fast import B as Base\nclass C(Base): ...\nclass D(C): ...",
        1,
    ),
    (
        interpreted_classes_with_a_compiled_base,
        "class A: ...",
        "import proxy.fast\nclass C(proxy.fast.A): ...",
        1,
    ),
    (
        interpreted_classes_with_a_compiled_base,
        "from proxy.slow import A\nclass B(A): ...",
        "class A: ...\nclass C(A): ...",
        0,
    ),
    (weak_references, "class A: ...", "import weakref", 1),
    (weak_references, "class A: ...", "from weakref import WeakSet", 1),
    (weak_references, "class A: ...", "import collections", 0),
    (
        functions_that_hold_each_other,
        "def f(a):\n    def g(x): return x + a\n    def h(x): return g(x)\n    return h",
        "",
        1,
    ),
    (functions_that_hold_each_other, "def f():\n    def g(x): return g(x - 1)\n    return g", "", 1),
    (functions_that_hold_each_other, "def f(a):\n    g = lambda x: a\n    return lambda x: g(x)", "", 1),
    (
        functions_that_hold_each_other,
        "def f(a, b):\n    g = b if a else lambda x: x\n    def h(x): return g(x)\n    return h",
        "",
        1,
    ),
    (
        functions_that_hold_each_other,
        "def f(a):\n    if a:\n        return lambda x: a\n    def g(x): return x\n    return g",
        "",
        0,
    ),
    (
        functions_that_hold_each_other,
        "def f(a):\n    def g(x): return a\n    def h(g): return g\n    return g, h",
        "",
        0,
    ),
)


def _sample(fast: str, slow: str) -> Program:
    modules = {name: parsed(name, text) for name, text in (("proxy.fast", fast), ("proxy.slow", slow))}
    return Program(modules, frozenset(["proxy.fast"]))


@pytest.mark.parametrize(
    ("rule", "fast", "slow", "violations"),
    [
        pytest.param(*sample, id=f"{sample[0].__name__}-{number}-{sample[3]}")
        for number, sample in enumerate(SAMPLES)
    ],
)
def test_a_rule_finds_what_breaks_it_and_nothing_else(
    rule: Rule, fast: str, slow: str, violations: int
) -> None:
    assert len(list(rule(_sample(fast, slow)))) == violations


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_has_a_sample_that_breaks_it_and_one_that_does_not(rule: Rule) -> None:
    assert {violations > 0 for each, _, _, violations in SAMPLES if each is rule} == {True, False}


def test_an_exception_to_a_rule_goes_with_its_reason() -> None:
    program = _sample("class A: ...", "class B: ...")
    program.protocol_attributes = {"proxy.fast.A.gone": "why"}
    program.weakly_referenced = {"proxy.slow": "proxy.fast.A"}
    assert len(list(attributes_with_the_type_of_a_protocol(program))) == 1
    assert len(list(weak_references(program))) == 2  # without weak references and with a compiled class
