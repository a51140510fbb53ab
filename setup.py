"""Add the data path that `./dev compile` made to a wheel. All other settings are in pyproject.toml.

GRAPHWARD_COMPILED names the directory with the compiled modules. Without it, the wheel is pure.
"""

import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = os.environ.get("GRAPHWARD_COMPILED")


class CompiledBefore(build_ext):
    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ext.sources[0], target)


def extensions(compiled: Path) -> list[Extension]:
    """Return an extension for each compiled module. Its only source is the file that the compiler made."""
    files = sorted(compiled.rglob("*.so"))
    if not files:
        raise SystemExit(f"{compiled} contains no compiled module")
    return [
        Extension(".".join(file.relative_to(compiled).with_name(file.name.split(".")[0]).parts), [str(file)])
        for file in files
    ]


setup(
    ext_modules=extensions(Path(COMPILED)) if COMPILED else [],
    cmdclass={"build_ext": CompiledBefore},
)
