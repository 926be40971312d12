"""How large the library is, by the same rules before and after a change.

`python benchmarks/size.py [--root CHECKOUT] [--json FILE [--column after]]` prints a table; with --json it also writes
the numbers into a column of the file, whose other columns stay. The rules:

- modules, lines: Python files and all their lines; the wheel is `src/moreauc`, the lines of its templates included.
- public names: what the pages `docs/reference/*.md` list, one on a line; in older checkouts the first column of the
  tables of `docs/api.md`, `moreauc.x.Name` and `.Name`.
- names in `__all__`: those of all modules of the wheel without an underscore in their path. A name that is imported
  from elsewhere is followed to where it is defined and counted once.
- functions above 40 lines: from `def` to the last line without the docstring; nested ones are part of theirs too.
- constructors above 12 arguments: of `__init__` without `self`, and fields of dataclasses.
- private imports across packages: a module `a.b._c` is private to everything in `a.b`; a name `_n` of a module to the
  modules of the same package. Each imported name counts.
- private attributes of others: `x._name`, where x is neither `self` nor `cls` and `_name` is defined in the package but
  not in this file.
- import cycles: strongly connected parts of the graph of modules. Imports inside functions and `import_module` of a
  text count, those under `if TYPE_CHECKING` do not. A name that a package only passes on, at once or on first use, is
  an import of the module that defines it; that importing `a.b` runs `a/__init__.py` is no import. Cycles of packages:
  the same with the parts directly below the top.
- `: Any`, `dict[str, Any]`: how often they stand in the wheel. Functions that return Any: by annotation.
- docs words: of the tracked pages `docs/*.md`, as `wc -w` counts them. Tracked files: `git ls-files`.
- files that calls enter: those of all functions called while `moreauc fit` runs on a small table, pages and the
  baseline included; see `size_probe.py`. Once by default, once with a checkpoint and with each kind of model as a
  baseline. Files loaded: modules of ours that were imported. A change of file is a call into another file than that of
  the call before.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from size_probe import WATCHED

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LONG, MANY = 40, 12
OF_TORCH = {"_buffers", "_modules", "_parameters"}
TEMPLATES = {".html", ".jinja", ".j2", ".css", ".js", ".svg"}
ALL_PARTS = ("--checkpoint", "checkpoint", "--baselines", "lr,linear,trees,forest,auto")
AIMS = {
    "wheel lines": 28_000,
    "experiments lines": 8_500,
    "tests lines": 29_000,
    "docs words": 50_000,
    "public names": 110,
    "`: Any`": 180,
    "`dict[str, Any]`": 57,
    "functions that return Any": 35,
    "import cycles of modules": 0,
    "import cycles of packages": 0,
    "`from moreauc import TPAUCLinear`: files loaded": 50,
    "step: files entered": 9,
    "step: changes of file": 35,
    "fit: files entered": 60,
    "fit with all parts: files entered": 60,
    "fit: kinds of columns found": 3,
    "fit: passes that look for doubtful columns": 1,
}


@dataclass
class Module:
    """A Python file.

    Attributes:
        name: dotted name.
        package: dotted name of the package it is in, or is.
        tree: its syntax.
        lines: number of its lines.
    """

    name: str
    package: str
    tree: ast.Module
    lines: int

    @cached_property
    def defined(self) -> set[str]:
        """Names that module-level statements define other than by import."""
        names: set[str] = set()
        for node in _module_level(self.tree.body):
            if isinstance(node, FunctionNode | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
        return names

    @cached_property
    def exported(self) -> list[str]:
        """Names in `__all__`; those of a computed one are the texts in it."""
        found: list[str] = []
        for node in _module_level(self.tree.body):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign | ast.AugAssign):
                targets = [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                texts = (leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant))
                found += [text for text in texts if isinstance(text, str)]
        return found

    def imports(self) -> Iterator[tuple[str, str | None, str]]:
        """Yield (module, name or None for the module itself, name here) of each import outside TYPE_CHECKING."""
        for node in _outside_type_checking(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name, None, alias.asname or alias.name.split(".")[0]
            elif isinstance(node, ast.ImportFrom):
                source = node.module or ""
                if node.level:
                    base = self.package.split(".")
                    base = base[: len(base) - node.level + 1]
                    source = ".".join([*base, source] if source else base)
                for alias in node.names:
                    yield source, alias.name, alias.asname or alias.name

    def loaded_by_text(self) -> Iterator[str]:
        """Yield a pattern of the modules that each `import_module(text)` may load; its parts stand here."""
        constants = (node.value for node in ast.walk(self.tree) if isinstance(node, ast.Constant))
        words = {text for text in constants if isinstance(text, str) and text.isidentifier()}
        for node in _outside_type_checking(self.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                parts = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else node.args[:1]
                if any(isinstance(part, ast.Constant) for part in parts):
                    anyone = f"(?:{'|'.join(sorted(words))})"
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else anyone for part in parts)


def _module_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _module_level(getattr(node, part, []))


def _outside_type_checking(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield from (other, *_outside_type_checking(other))
            continue
        yield child
        yield from _outside_type_checking(child)


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def read_modules(folder: Path) -> dict[str, Module]:
    """Return the modules of the package in a folder, by dotted name."""
    found: dict[str, Module] = {}
    for path in python_files(folder):
        parts = list(path.relative_to(folder.parent).with_suffix("").parts)
        package = parts[:-1]
        if parts[-1] == "__init__":
            parts = package
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts)
        found[name] = Module(name, ".".join(package), ast.parse(text), len(text.splitlines()))
    return found


def origin(modules: dict[str, Module], module: str, name: str, depth: int = 20) -> tuple[str, str | None]:
    """Return the module and name that `from module import name` leads to; None as name for a module."""
    if f"{module}.{name}" in modules:
        return f"{module}.{name}", None
    here = modules.get(module)
    if here is None or name in here.defined or not depth:
        return module, name
    for source, original, local in here.imports():
        if local == name and original is not None:
            return origin(modules, source, original, depth - 1)
    for submodule, other in modules.items():  # loaded on first use, by a module-level __getattr__
        if "__getattr__" in here.defined and submodule.startswith(f"{module}.") and name in other.defined:
            return submodule, name
    return module, name


def exported_objects(modules: dict[str, Module]) -> set[tuple[str, str | None]]:
    """Return the objects in `__all__` of public modules, each by where it is defined."""
    public = [module for name, module in modules.items() if not any(part[0] == "_" for part in name.split("."))]
    return {origin(modules, module.name, name) for module in public for name in module.exported}


def documented_names(page: str) -> int:
    """Return how many names a page lists: alone on an indented line, or in the first columns of tables."""
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    count = len(re.findall(r"^ +moreauc(?:\.\w+)+$", page, re.MULTILINE))
    for cell in cells:
        top = "moreauc"
        for full, _ in re.findall(r"`(\w*)((?:\.\w+)+)`", cell):
            top = full or top  # `.Name` goes on with the name before it, which may be one of the experiments
            count += top == "moreauc"
    return count


def import_graph(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Return which modules each module imports, by the rules of the module's docstring."""
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for module in modules.values():
        targets = [
            source if name is None or name == "*" else origin(modules, source, name)[0]
            for source, name, _ in module.imports()
        ]
        for pattern in module.loaded_by_text():
            targets += [name for name in modules if re.fullmatch(pattern, name)]
        graph[module.name] |= {target for target in targets if target in modules and target != module.name}
    return graph


def package_graph(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph of the parts directly below the top package, without the top package's own module."""

    def part(name: str) -> str:
        return ".".join(name.split(".")[:2])

    result: dict[str, set[str]] = {part(name): set() for name in graph if "." in name}
    for name, targets in graph.items():
        if "." in name:
            result[part(name)] |= {part(target) for target in targets if "." in target} - {part(name)}
    return result


@dataclass
class _Search:
    """Tarjan's search for strongly connected parts."""

    graph: dict[str, set[str]]
    number: dict[str, int] = field(default_factory=dict)
    low: dict[str, int] = field(default_factory=dict)
    stack: list[str] = field(default_factory=list)
    parts: list[list[str]] = field(default_factory=list)

    def visit(self, node: str) -> None:
        """Number a node and all that it reaches."""
        self.number[node] = self.low[node] = len(self.number)
        self.stack.append(node)
        for target in sorted(self.graph[node]):
            if target not in self.number:
                self.visit(target)
                self.low[node] = min(self.low[node], self.low[target])
            elif target in self.stack:
                self.low[node] = min(self.low[node], self.number[target])
        if self.low[node] == self.number[node]:
            place = self.stack.index(node)
            self.parts.append(sorted(self.stack[place:]))
            del self.stack[place:]


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected parts of more than one node."""
    search = _Search(graph)
    for node in graph:
        if node not in search.number:
            search.visit(node)
    return sorted(part for part in search.parts if len(part) > 1)


def private_imports(modules: dict[str, Module]) -> list[str]:
    """Return the imports of what is private to another package, as 'importer: module.name'."""
    found = []
    for module in modules.values():
        for source, name, _ in module.imports():
            if source.split(".")[0] not in {known.split(".")[0] for known in modules}:
                continue
            parts = source.split(".")
            if name is not None and f"{source}.{name}" in modules:
                parts, name = [*parts, name], None
            hidden = [place for place, part in enumerate(parts) if part[0] == "_" and part != "__main__"]
            homes = {".".join(parts[:place]) for place in hidden}
            bad = any(module.package != home and not module.package.startswith(f"{home}.") for home in homes)
            if name is not None and name[0] == "_" and not name.startswith("__"):
                package = modules[source].package if source in modules else source
                bad = bad or module.package != package
            if bad:
                found.append(f"{module.name}: {'.'.join(parts)}{f'.{name}' if name else ''}")
    return sorted(found)


def _private_members(tree: ast.Module) -> set[str]:
    """Return the underscore names that a file defines, as functions, names or attributes of `self`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, FunctionNode | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node):
            names.add(node.attr)
    return {name for name in names - OF_TORCH if name[0] == "_" and not name.startswith("__")}


def _is_own(node: ast.Attribute) -> bool:
    """Return whether an attribute is one of `self`, `cls` or `super()`."""
    if isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func) == "super"
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def private_attributes(modules: dict[str, Module]) -> list[str]:
    """Return the uses of private attributes of objects of other files, as 'module: attribute'."""
    members = {name: _private_members(module.tree) for name, module in modules.items()}
    known = set().union(*members.values())
    return sorted(
        f"{name}: {node.attr}"
        for name, module in modules.items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in known - members[name] and not _is_own(node)
    )


def function_length(node: FunctionNode) -> int:
    """Return the lines of a function without its docstring."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def long_functions(modules: dict[str, Module], limit: int = LONG) -> list[str]:
    return sorted(
        f"{name}: {node.name} ({function_length(node)})"
        for name, module in modules.items()
        for node in ast.walk(module.tree)
        if isinstance(node, FunctionNode) and function_length(node) > limit
    )


def _constructor_arguments(node: ast.ClassDef) -> int:
    for part in node.body:
        if isinstance(part, FunctionNode) and part.name == "__init__":
            arguments = part.args
            return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        return len([part for part in fields if "ClassVar" not in ast.unparse(part.annotation)])
    return 0


def wide_constructors(modules: dict[str, Module], limit: int = MANY) -> list[str]:
    return sorted(
        f"{name}: {node.name} ({_constructor_arguments(node)})"
        for name, module in modules.items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and _constructor_arguments(node) > limit
    )


def _lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def static_numbers(root: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return what is counted without running anything, and what was counted where that has names."""
    wheel, experiments = root / "src" / "moreauc", root / "experiments"
    own = read_modules(wheel)
    outside = read_modules(experiments) if experiments.is_dir() else {}
    both = own | outside
    graph = import_graph(both)
    templates = [path for path in wheel.rglob("*") if path.suffix in TEMPLATES]
    pages = [root / "docs" / "api.md", *sorted((root / "docs" / "reference").glob("*.md"))]
    tracked = subprocess.run(["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True)
    files = [root / line for line in tracked.stdout.splitlines()]
    texts = [path.read_text(encoding="utf-8") for path in python_files(wheel)]
    functions = [node for module in own.values() for node in ast.walk(module.tree) if isinstance(node, FunctionNode)]
    named = {
        "functions above 40 lines": long_functions(both),
        "constructors above 12 arguments": wide_constructors(both),
        "private imports across packages": private_imports(both),
        "private attributes of others": private_attributes(both),
        "import cycles of modules": [", ".join(part) for part in cycles(graph)],
        "import cycles of packages": [", ".join(part) for part in cycles(package_graph(graph))],
    }
    numbers = {
        "wheel modules": len(own),
        "wheel lines": sum(module.lines for module in own.values()) + _lines(templates),
        "experiments modules": len(outside),
        "experiments lines": sum(module.lines for module in outside.values()),
        "tests modules": len(python_files(root / "tests")),
        "tests lines": _lines(python_files(root / "tests")),
        "docs words": sum(
            len(path.read_bytes().split())
            for path in files
            if path.is_relative_to(root / "docs") and path.suffix == ".md"
        ),
        "`: Any`": sum(text.count(": Any") for text in texts),
        "`dict[str, Any]`": sum(text.count("dict[str, Any]") for text in texts),
        "functions that return Any": sum(
            isinstance(node.returns, ast.Name) and node.returns.id == "Any" for node in functions
        ),
        "public names": sum(documented_names(page.read_text(encoding="utf-8")) for page in pages if page.exists()),
        "names in __all__": len(exported_objects(own)),
    }
    numbers |= {key: len(names) for key, names in named.items()}
    return numbers | {"tracked files": len(files)}, named


def _probe(root: Path, *words: str, folder: str | None = None) -> dict[str, int]:
    program = Path(__file__).with_name("size_probe.py")
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, str(program), *words], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    if result.returncode:
        raise SystemExit(f"size_probe.py {words[0]} failed:\n{result.stderr}")
    numbers: dict[str, int] = json.loads(result.stdout.splitlines()[-1])
    return numbers


def dynamic_numbers(root: Path) -> dict[str, int]:
    """Return what is counted while an import, a step and `moreauc fit` run."""
    step = _probe(root, "step")
    numbers = {
        "`from moreauc import TPAUCLinear`: files loaded": _probe(root, "import")["loaded"],
        "step: files entered": step["files"],
        "step: changes of file": step["changes"],
    }
    for title, options in (("fit", ()), ("fit with all parts", ALL_PARTS)):
        with tempfile.TemporaryDirectory() as folder:
            fit = _probe(root, "fit", folder, *options, folder=folder)
        numbers |= {f"{title}: files entered": fit["files"], f"{title}: files loaded": fit["loaded"]}
        numbers |= {f"{title}: {key}": fit[key] for key in WATCHED}
    return numbers


def table(columns: dict[str, dict[str, int]]) -> str:
    """Return the numbers as a table in Markdown, with a column for each state and one for the aims."""
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for key in dict.fromkeys(key for column in columns.values() for key in column):
        cells = [f"{column[key]:,}" if key in column else "" for column in columns.values()]
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count modules, names, cycles and the files that calls pass.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="checkout to measure")
    parser.add_argument("--json", type=Path, help="file whose column is rewritten")
    parser.add_argument("--column", default="after", help="name of the column")
    parser.add_argument("--static", action="store_true", help="run nothing")
    parser.add_argument("--list", action="store_true", help="show what was counted, too")
    options = parser.parse_args()
    root = options.root.resolve()
    numbers, named = static_numbers(root)
    if not options.static:
        numbers |= dynamic_numbers(root)
    columns: dict[str, dict[str, int]] = {}
    if options.json and options.json.exists():
        columns = json.loads(options.json.read_text(encoding="utf-8"))
    columns[options.column] = numbers
    columns.pop("aim", None)
    columns["aim"] = {key: aim for key, aim in AIMS.items() if key in numbers}  # the last column
    if options.json:
        options.json.write_text(json.dumps(columns, indent=1) + "\n", encoding="utf-8")
    print(table(columns))
    if options.list:
        for key, names in named.items():
            print("\n".join([f"\n{key}:", *names]))


if __name__ == "__main__":
    main()
