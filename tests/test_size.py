"""The counts of `benchmarks/size.py` on a small package where each of them is known."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
FILES = {
    "__init__.py": """
        from toy.shapes import Square
        from toy.tools import helper
        __all__ = ["Square", "helper", "lazy"]
        __all__ += ["shapes"]
        def __getattr__(name): ...
        """,
    "_shared.py": "def check(): ...",
    "later.py": "def lazy(): ...",
    "shapes/__init__.py": """
        from toy.shapes._square import Square, _corner
        __all__ = ["Square", "LIMIT"]
        LIMIT = 3
        """,
    "shapes/_square.py": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from toy._shared import check
        if TYPE_CHECKING:
            from toy.tools import helper
        class Square:
            def __init__(self, a, b, *, c=1):
                self._side = a
            def area(self):
                return self._side ** 2
        def _corner(): ...
        """,
    "tools/__init__.py": """
        from .one import helper
        """,
    "tools/one.py": """
        import toy.tools.two
        from toy.shapes import _square
        from toy.shapes._square import Square
        from toy.shapes import _corner
        def helper(square):
            '''Return something.

            Longer.
            '''
            check = square
            return square._side
        """,
    "tools/two.py": """
        from dataclasses import dataclass
        def late():
            from .one import helper
        @dataclass
        class Wide:
            a: int
            b: int = 2
            c: int = 3
            d: int = 4
        """,
}


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("size")


@pytest.fixture
def toy(size: ModuleType, tmp_path: Path):
    for name, text in FILES.items():
        path = tmp_path / "toy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        path.write_text("\n".join(line[indent:] for line in lines))
    return size.read_modules(tmp_path / "toy")


def test_modules_and_their_packages(toy):
    assert len(toy) == 8
    assert {name: module.package for name, module in toy.items()} == {
        **{"toy": "toy", "toy._shared": "toy", "toy.later": "toy", "toy.shapes": "toy.shapes"},
        **{"toy.shapes._square": "toy.shapes", "toy.tools": "toy.tools"},
        **{"toy.tools.one": "toy.tools", "toy.tools.two": "toy.tools"},
    }
    assert toy["toy._shared"].lines == 1


def test_an_object_with_several_homes_counts_once(size, toy):
    assert size.exported_objects(toy) == {
        *{("toy.shapes._square", "Square"), ("toy.tools.one", "helper"), ("toy.later", "lazy")},
        *{("toy.shapes", None), ("toy.shapes", "LIMIT")},
    }


def test_names_of_the_documentation(size):
    page = "text `moreauc.no`\n| name | what |\n|---|---|\n| `moreauc.a.B`, `.c` | as `.d` |\n| `moreauc fit` | |"
    page += "\n| `experiments.x.Y`, `.z` | |"
    page += "\n\n   moreauc.a.D\n   :toctree: generated\n"
    assert size.documented_names(page) == 3


def test_imports_follow_names_to_their_module(size, toy):
    graph = size.import_graph(toy)
    assert graph["toy.shapes._square"] == {"toy._shared"}  # not what only type checkers see
    assert graph["toy.tools.one"] == {"toy.tools.two", "toy.shapes._square"}
    assert graph["toy.tools"] == {"toy.tools.one"}
    assert size.cycles(graph) == [["toy.tools.one", "toy.tools.two"]]  # closed by an import in a function
    assert size.cycles(size.package_graph(graph)) == []
    assert size.cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_what_is_private_to_another_package(size, toy):
    assert size.private_imports(toy) == [
        "toy.tools.one: toy.shapes._corner",
        "toy.tools.one: toy.shapes._square",
        "toy.tools.one: toy.shapes._square.Square",
    ]
    assert size.private_attributes(toy) == ["toy.tools.one: _side"]


def test_long_functions_and_wide_constructors(size, toy):
    assert size.long_functions(toy, limit=2) == ["toy.tools.one: helper (3)"]  # without the docstring
    assert size.wide_constructors(toy, limit=2) == ["toy.shapes._square: Square (3)", "toy.tools.two: Wide (4)"]


def test_a_column_is_rewritten_and_the_others_stay(size, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(size, "static_numbers", lambda root: ({"wheel lines": 12345, "tracked files": 7}, {}))
    file = tmp_path / "size.json"
    file.write_text(json.dumps({"before": {"wheel lines": 20000}, "after": {"wheel lines": 1}}))
    monkeypatch.setattr(sys, "argv", ["size.py", "--static", "--json", str(file)])
    size.main()
    columns = json.loads(file.read_text())
    assert columns == {"before": {"wheel lines": 20000}, "after": {"wheel lines": 12345, "tracked files": 7}}
    assert "| wheel lines | 20,000 | 12,345 | 22,000 |" in capsys.readouterr().out


def test_files_passed_by_a_step(size):
    calls = size._probe(FOLDER.parent, "step")
    assert {"criteria/tpauc.py", "optim/previous.py"} <= set(calls["names"])
    assert calls["files"] == len(calls["names"]) and calls["files"] - 1 <= calls["changes"] < calls["calls"]
