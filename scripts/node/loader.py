"""How the modules of this folder travel: as texts in one program, for `python3 -` on a node or a file in a container.

The program is this file, the filled `sources`, and a call of run(). Such a program can make further ones.
Standard library only, Python 3.10.
"""

import ast
import runpy
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

sources: dict[str, str] = {}
"""Text by a module's dotted name; empty where the folder itself is available."""


def file_of(module: str) -> str:
    """A module's file in this folder: gid/lookup.py is gid.lookup."""
    return f"{module.replace('.', '/')}.py"


def is_ours(module: str) -> bool:
    return module in sources if sources else (Path(__file__).parent / file_of(module)).is_file()


def text_of(module: str) -> str:
    """The text of one module of this folder. A program on a node has only those that it imports."""
    return sources[module] if sources else (Path(__file__).parent / file_of(module)).read_text()


@cache
def imports_of(module: str) -> list[str]:
    """The modules of this folder that one of them imports itself."""
    imported: list[str] = []
    for node in ast.walk(ast.parse(text_of(module))):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [other for other in imported if is_ours(other)]


@cache
def payload(name: str) -> str:
    """The program that runs the module `name`, with every module of this folder that it imports."""
    texts: dict[str, str] = {}
    names = [name]
    while names:
        module = names.pop()
        texts[module] = text_of(module)
        names += [other for other in imports_of(module) if other not in texts]
    lines = [f"sources[{module!r}] = {text!r}\n" for module, text in sorted(texts.items())]
    return "".join([text_of("loader"), *lines, f"run({name!r})\n"])


class Embedded(MetaPathFinder, ExecutionLoader):
    """Imports from `sources`; a folder is a package without text."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in sources:
            return ModuleSpec(fullname, self, origin=self.get_filename(fullname))
        is_package = any(name.startswith(f"{fullname}.") for name in sources)
        return ModuleSpec(fullname, self, is_package=True) if is_package else None

    def get_source(self, fullname: str) -> str:
        return sources.get(fullname, "")

    def get_filename(self, fullname: str) -> str:
        """What a traceback calls it."""
        return file_of(fullname)


def run(name: str) -> None:
    """Run a module of `sources` as the program."""
    sys.modules["loader"] = sys.modules["__main__"]
    sys.meta_path.insert(0, Embedded())
    runpy.run_module(name, run_name="__main__")
