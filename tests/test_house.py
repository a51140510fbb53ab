"""Tests of the package rules in ARCHITECTURE.md: the direction of imports, and forbidden imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PURE: Final = (
    "proxy.policy",
    "proxy.wire",
    "proxy.config",
    "proxy.outbound.egress",
    "proxy.outbound.settings",
    "proxy.server.assertions.assertion",
    "proxy.server.assertions.keys",
    "proxy.server.http1",
    "proxy.server.content",
    "proxy.server.client_limits",
    "proxy.server.errors",
    "proxy.supervisor.reload",
    "proxy.server.exchange.request_body",
    "controlplane.workshop",
    "controlplane.model",
    "controlplane.report",
)
SHARED: Final = (  # shared with the control plane
    "proxy.policy",
    "proxy.wire",
    "proxy.config",
    "proxy.outbound",
    "proxy.process",
)
IMPURE_MODULES: Final = ("asyncio", "socket", "sqlite3", "os", "time", "random")
# Slow to import and unused on the data path: workers start and restart without these modules.
NOT_IN_WORKERS: Final = ("pydantic", "yaml", "aiohttp", "azure", "msal")


@dataclass(frozen=True, slots=True)
class Import:
    importer: str
    imported: str
    line: int
    at_module_level: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def _module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TOPS: Final = ("proxy", "controlplane", "graphward")
MODULES: Final = {_module_name(file): file for top in TOPS for file in sorted((ROOT / top).rglob("*.py"))}


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _imports_of(module: str, file: Path) -> Iterator[Import]:
    tree = ast.parse(file.read_text("utf-8"), str(file))
    for node, at_module_level in _import_nodes(tree.body, at_module_level=True):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, at_module_level)
        else:
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide which way they point"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                imported = name if name in MODULES else str(node.module)
                yield Import(module, imported, node.lineno, at_module_level)


def _import_nodes(
    body: list[ast.stmt], *, at_module_level: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Yield each import statement of a module, and True if importing the module executes the statement."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement, at_module_level
            continue
        function = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test)
        for block in _blocks(statement):
            yield from _import_nodes(
                block, at_module_level=at_module_level and not function and not for_types
            )


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for inner in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
        yield inner.body


@cache  # every process that collects tests imports this module, but only one of them runs it
def imports() -> list[Import]:
    return [each for module, file in MODULES.items() for each in _imports_of(module, file)]


@cache
def own_imports() -> list[Import]:
    return [each for each in imports() if each.imported.partition(".")[0] in TOPS]


def _order_of_the_house() -> list[str]:
    """Return the packages one level below the top packages, in the order of ARCHITECTURE.md."""
    house = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("## Packages")[2].partition("```")[2]
    rooms: list[str] = []
    top = ""
    for line in house.partition("```")[0].splitlines():
        if re.match(r"\w+/", line):
            top = line.partition("/")[0]
        elif re.match(r"  \w", line) and top in TOPS:
            rooms += [f"{top}.{name}" for name in re.findall(r"(?:^|  )(\w+)(?:\.py|/)(?= |$)", line[2:])]
    return rooms


ROOMS: Final = _order_of_the_house()


def _room(module: str, depth: int = 2) -> str:
    return ".".join(module.split(".")[:depth])


def test_the_house_lists_every_room() -> None:
    rooms = {_room(module) for module in MODULES} - set(TOPS)
    assert rooms - set(ROOMS) == set(), "not in ARCHITECTURE.md"


def test_imports_point_down_the_house() -> None:
    up = [
        str(each)
        for each in own_imports()
        if _room(each.importer) in ROOMS and _room(each.imported) in ROOMS
        if each.importer.partition(".")[0] == each.imported.partition(".")[0]
        if ROOMS.index(_room(each.importer)) > ROOMS.index(_room(each.imported))
    ]
    assert up == []


def test_no_module_leads_back_to_itself() -> None:
    """The search for import cycles includes imports that only type annotations need."""
    graph: dict[str, set[str]] = {}
    for each in own_imports():
        if each.imported != each.importer:
            graph.setdefault(each.importer, set()).add(each.imported)
    _assert_no_circle(graph)


@pytest.mark.parametrize("package", ["proxy", "proxy.server"])
def test_no_room_leads_back_to_itself(package: str) -> None:
    """Cycles between packages include imports that only type annotations need."""
    depth = package.count(".") + 2
    graph: dict[str, set[str]] = {}
    for each in own_imports():
        if _within(each.importer, package) and _within(each.imported, package):
            importer, imported = (_room(name, depth) for name in (each.importer, each.imported))
            if importer != imported and package not in (importer, imported):
                graph.setdefault(importer, set()).add(imported)
    _assert_no_circle(graph)


def _assert_no_circle(graph: dict[str, set[str]]) -> None:
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' -> '.join(error.args[1])}")


def _server_rooms() -> list[str]:
    """Return the packages of the data path in the order of ARCHITECTURE.md, from top to bottom."""
    house = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("\n  server/ ")[2]
    listed = house.partition("\n  agent/ ")[0]
    return [f"proxy.server.{name}" for name in re.findall(r"^    (\w+)(?:\.py|/) ", listed, re.M)]


def test_imports_point_down_the_data_path() -> None:
    rooms = _server_rooms()
    own = [
        (each, rooms.index(_room(each.importer, 3)), rooms.index(_room(each.imported, 3)))
        for each in own_imports()
        if each.importer.startswith("proxy.server.") and each.imported.startswith("proxy.server.")
    ]
    assert [str(each) for each, importer, imported in own if importer > imported] == []


def test_the_control_plane_imports_only_the_shared_parts_of_the_proxy() -> None:
    wrong = [
        str(each)
        for each in own_imports()
        if _within(each.importer, "controlplane") and _within(each.imported, "proxy")
        if not any(_within(each.imported, package) for package in SHARED)
    ]
    assert wrong == []


def test_the_proxy_imports_nothing_of_the_control_plane() -> None:
    wrong = [
        str(each)
        for each in own_imports()
        if _within(each.importer, "proxy") and _within(each.imported, "controlplane")
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PURE)
def test_a_pure_package_has_no_clock_no_chance_and_no_io(package: str) -> None:
    wrong = [
        str(each)
        for each in imports()
        if _within(each.importer, package)
        if any(_within(each.imported, module) for module in IMPURE_MODULES)
    ]
    assert wrong == []


def test_a_pure_package_imports_only_pure_parts_of_ours() -> None:
    wrong = [
        str(each)
        for each in own_imports()
        if any(_within(each.importer, package) for package in PURE)
        if not any(_within(each.imported, package) for package in PURE)
    ]
    assert wrong == []


def test_workers_import_nothing_heavy() -> None:
    """Workers import no module of NOT_IN_WORKERS, either directly or through other modules."""
    reached, waiting = (
        set(),
        [each for each in MODULES if _within(each, "proxy.server") or _within(each, "proxy.worker")],
    )
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += [
                each.imported
                for each in own_imports()
                if each.importer == module and each.at_module_level and each.imported in MODULES
            ]
    heavy = [
        str(each)
        for each in imports()
        if each.importer in reached and each.at_module_level
        if any(_within(each.imported, module) for module in NOT_IN_WORKERS)
    ]
    assert heavy == []


AZURE: Final = {  # modules that import Azure's SDK, and are imported only if a setting needs it
    "controlplane.archive.azure_blob",
    "controlplane.sinks.azure_token",
    "controlplane.sinks.blob",
    "proxy.agent.credentials.entra",
    "proxy.outbound.azure_sdk",
    "proxy.outbound.key_vault",
    "proxy.outbound.machine_identity",
}


def test_few_modules_import_azures_sdk_and_no_program_imports_them_at_once() -> None:
    """Azure's SDK must be imported late, because every worker has the supervisor's imports."""
    assert {each.importer for each in imports() if _within(each.imported, "azure")} == AZURE
    at_once: dict[str, set[str]] = {}
    for each in own_imports():
        if each.at_module_level:
            at_once.setdefault(each.importer, set()).add(each.imported)
    reached, left = (
        set[str](),
        ["proxy.__main__", "proxy.agent.main", "controlplane.__main__", "controlplane.app"],
    )
    while left:
        module = left.pop()
        if module not in reached:
            reached.add(module)
            left += at_once.get(module, ())
    assert reached & AZURE == set()


@pytest.mark.parametrize("module", list(MODULES))
def test_a_module_says_its_job_first(module: str) -> None:
    text = MODULES[module].read_text("utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{module} has no docstring"


@pytest.mark.parametrize("call", ["self.phase = _ENDED", "pending.write(", "exchange_done("])
def test_an_exchange_ends_in_one_place(call: str) -> None:
    """One method writes the audit records of an exchange, and only then sends the exchange's last bytes."""
    text = MODULES["proxy.server.exchange.exchange"].read_text("utf-8")
    ending = text.partition("    def _end(")[2].partition("\n    def ")[0]
    assert (text.count(call), ending.count(call)) == (1, 1)
