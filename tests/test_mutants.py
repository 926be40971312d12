"""The mutation run: which changes it makes, that it finds them again, and what it concludes from tests."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
SOURCE = '''
"""A module."""
import os
LIMIT = 3

class Box:
    """A box."""

    def __repr__(self):
        return f"{1 + 1}"

    def fill(self, low: int = 2, *, high: float = 0.5) -> bool:
        """Fill it."""
        if low < 0 and not high:
            raise ValueError(f"low is {low + 1}")
        self.content = [max(low, 1)] * 2
        self.content += [-high]
        log.info("filled")
        return low == 1
'''


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def mutations():
    return importlib.import_module("mutations")


@pytest.fixture
def mutants():
    return importlib.import_module("mutants")


def test_each_kind_of_change_is_found_once(mutations):
    keys = [mutation.key for mutation in mutations.mutations(ast.parse(SOURCE))]
    assert [(key.function, key.change) for key in keys] == [
        ("<module>", "3 -> 4"),
        *[("Box.fill", change) for change in ("negated", "And -> Or", "Lt -> LtE", "0 -> 1", "not removed")],
        ("Box.fill", "removed"),  # the error, whose text is left alone
        *[("Box.fill", change) for change in ("removed", "Mult -> Div", "max -> min", "1 -> 2", "2 -> 3")],
        *[("Box.fill", change) for change in ("removed", "Add -> Sub", "minus removed")],
        *[("Box.fill", change) for change in ("Eq -> NotEq", "1 -> 2")],
    ]
    assert keys[1].statement == "if low < 0 and (not high):" and len(set(keys)) == len(keys)


def test_a_change_is_the_only_difference(mutations):
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutation in mutations.mutations(ast.parse(SOURCE)):
        lines = mutations.mutated(SOURCE, mutation.key).splitlines()
        assert sum(one != other for one, other in zip(plain, lines, strict=True)) == 1
    with pytest.raises(KeyError):
        mutations.mutated(SOURCE, mutations.Key("Box.fill", "pass", "removed"))


def test_equal_changes_are_numbered(mutations):
    keys = [mutation.key for mutation in mutations.mutations(ast.parse("def f():\n g(1, 1)\n g(1, 1)\n"))]
    assert [(key.change, key.occurrence) for key in keys] == [
        *[("removed", 1), ("1 -> 2", 1), ("1 -> 2 (2)", 1)],
        *[("removed", 2), ("1 -> 2", 2), ("1 -> 2 (2)", 2)],
    ]


def write_checkout(root: Path, file: str, source: str) -> Path:
    """Write a checkout with a file of samplers, and a test that sees only part of it."""
    path = root / "src" / "moreauc" / file
    path.parent.mkdir(parents=True)
    for folder in (path.parent, root / "src" / "moreauc"):
        (folder / "__init__.py").write_text("")
    path.write_text(source)
    module = "moreauc." + file.removesuffix(".py").replace("/", ".")
    (root / "tests").mkdir()
    (root / "tests" / "test_some_sampler.py").write_text(
        f"from {module} import *\n\ndef test_low():\n    assert low(1, 2) == 3\n\n"
        "def test_high():\n    assert high(2, 1) == 2\n\ndef test_fails():\n    assert low(1, 1) == 3\n"
    )
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    return root


LOW = "def low(x, y):\n    return x + y\n"
HIGH = "def high(x, y):\n    return x * y\n"


def program(root: Path, out: Path, state: str) -> list[dict]:
    words = ["--root", root, "--out", out, "--state", state, "--parts", "samplers", "--processes", "1"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # starts faster
    command = [sys.executable, FOLDER / "mutants.py", *map(str, words)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return [json.loads(line) for line in out.read_text().splitlines()]


def outcome(results: list[dict], state: str) -> dict[tuple[str, str], tuple[str, bool]]:
    return {
        (result["key"]["function"], result["key"]["change"]): (result["result"], "fresh" in result)
        for result in results
        if result["state"] == state
    }


def test_mutants_are_tried_and_found_again_where_code_has_moved(tmp_path):
    out = tmp_path / "mutants.jsonl"
    before = write_checkout(tmp_path / "before", "samplers/a.py", LOW + HIGH)
    results = program(before, out, "before")
    assert outcome(results, "before") == {
        ("low", "Add -> Sub"): ("killed", False),
        ("high", "Mult -> Div"): ("survived", False),
    }
    assert {result["tests"] for result in results} == {1}  # those that call the function; the failing one is left out
    assert program(before, out, "before") == results  # nothing is done twice

    after = write_checkout(tmp_path / "after", "samplers/deep/b.py", HIGH.replace("x", "z") + LOW)
    found = [result for result in program(after, out, "after") if not result.get("fresh")]
    assert outcome(found, "after") == {
        ("low", "Add -> Sub"): ("killed", False),
        ("high", "Mult -> Div"): ("missing", False),  # its statement has another variable now
    }
    fresh = [result for result in map(json.loads, out.read_text().splitlines()) if result.get("fresh")]
    assert {result["key"]["statement"] for result in fresh} == {"return z * y"}
    assert {result["result"] for result in fresh} == {"survived"}


def test_a_function_with_another_name_is_found_by_its_statement(mutants, mutations):
    key = mutations.Key("old", "return x + 1", "1 -> 2")
    there = [mutants.Mutant("core", "a.py", found, found) for found in [mutations.Key("new", "return x + 1", "1 -> 2")]]
    assert mutants.find_again(key, there) is there[0]
    assert mutants.find_again(key, there * 2) is None  # which of them?
    assert mutants.find_again(mutations.Key("old", "return x", "1 -> 2"), there) is None


def test_tests_are_chosen_by_what_they_call_fastest_first(mutants):
    def test(seconds, calls=(), setup=(), passed=True):
        return {"seconds": seconds, "calls": list(calls), "setup": list(setup), "passed": passed}

    calls = {
        "a.py::slow": test(3.0, ["f"]),
        "a.py::fast": test(1.0, ["f"]),
        "a.py::fails": test(0.1, ["f"], passed=False),
        "b.py::first": test(2.0, [], ["f"]),
        "b.py::shares_the_fixture": test(0.5),
    }
    assert mutants.chosen_tests(calls, "f") == ["b.py::shares_the_fixture", "a.py::fast", "b.py::first", "a.py::slow"]
    assert len(mutants.chosen_tests(calls, "unseen")) == 4


def test_every_part_has_sources_and_tests(mutants):
    root = FOLDER.parent
    for part in mutants.PARTS:
        found = mutants.all_mutants(root / "src" / "moreauc", part)
        assert len(found) > 100 and mutants.test_files(root, part), part
        assert len({mutant.key for mutant in found}) == len(found)
        drawn = mutants.draw(found, 9, 0)
        assert mutants.draw(found, 3, 0) == drawn[:3] != mutants.draw(found, 3, 1)
        assert mutants.draw([mutant for mutant in found if mutant != drawn[0]], 8, 0) == drawn[1:]


def test_a_later_state_fills_a_part_up(mutants):
    root = FOLDER.parent
    first = mutants.draw(mutants.all_mutants(root / "src" / "moreauc", "checkpoint"), 4, 0)
    gone = replace(first[0].key, function="gone", statement="gone")
    results = [
        {"state": "before", "part": "checkpoint", "key": asdict(key)}
        for key in [gone, *(mutant.key for mutant in first[1:])]
    ]
    for per_part, number in ((6, 6), (2, 4)):
        options = argparse.Namespace(state="after", per_part=per_part, seed=0)
        wanted, missing = mutants.plan(root, "checkpoint", results, options)
        assert missing == [gone] and len({mutant for mutant, _, _ in wanted}) == number
        assert [fresh for _, _, fresh in wanted] == 3 * [False] + (number - 3) * [True]


def test_table_counts_a_time_out_as_killed_and_others_apart(mutants, mutations, tmp_path):
    lines = [("core", "killed"), ("core", "timeout"), ("core", "survived"), ("core", "missing"), ("metrics", "killed")]
    keys = [asdict(mutations.Key("f", str(number), "1 -> 2")) for number in range(5)]
    results = [
        {"state": "after", "part": part, "result": result, "key": key}
        for (part, result), key in zip(lines, keys, strict=True)
    ]
    assert mutants.table(results).splitlines()[2:] == [
        "| after | core | 3 | 2 | 1 | 67 | 0 | 67 | 1 |",
        "| after | metrics | 1 | 1 | 0 | 100 | 0 | 100 | 0 |",
        "| after | all | 4 | 3 | 1 | 75 | 0 | 75 | 1 |",
    ]
    named = [{"part": part, "key": key, "reason": "it is so"} for (part, _), key in zip(lines, keys, strict=True)]
    report = tmp_path / "mutants.jsonl"
    report.with_name("equivalent_mutants.jsonl").write_text("\n".join(map(json.dumps, named)))
    equivalent = mutants.read_equivalent(report)
    assert mutants.table(results, equivalent).splitlines()[2:] == [  # of the five only one survived
        "| after | core | 3 | 2 | 1 | 67 | 1 | 100 | 1 |",
        "| after | metrics | 1 | 1 | 0 | 100 | 0 | 100 | 0 |",
        "| after | all | 4 | 3 | 1 | 75 | 1 | 100 | 1 |",
    ]
    assert mutants.read_equivalent(tmp_path / "none" / "mutants.jsonl") == set()


def test_each_equivalent_mutant_is_one_that_survived_and_has_a_reason(mutants):
    survived = {
        (result["part"], mutants.key_of(result))
        for result in mutants.read_results(mutants.REPORT)
        if result["result"] == "survived"
    }
    assert mutants.read_equivalent(mutants.REPORT) <= survived
    lines = mutants.read_results(mutants.REPORT.with_name("equivalent_mutants.jsonl"))
    assert all(set(line) == {"part", "key", "reason"} and line["reason"] for line in lines)
