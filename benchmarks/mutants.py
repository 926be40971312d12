"""Mutation run: small errors are put into the code, one at a time, and the tests run on each.

`python benchmarks/mutants.py --state before --root CHECKOUT`, later `--state after`. The first state draws mutants
with a seed from each part of the library. Any other state looks for the same mutants again, by function, statement and
change (see `mutations.py`), then by statement and change alone if that is unique, then for the same change of a similar
statement: code may have moved or been reworded. Those that are not there any more are `missing`, and the part is filled
up to `--per-part` with new ones from the present code. A seed gives each mutant a place in the draw that depends on its
key alone, so that an edit elsewhere leaves the others drawn.

For each part its tests run once without a change, to see which functions each test calls; a mutant is then tried on
the tests that call its function, the fastest first, until one fails. Tests whose fixtures call it count with all tests
of their file. A function that no test calls in its own process is tried on all tests of the part. A mutant is killed
if a test fails or the time is over. What `docs/reports/mutants.jsonl` holds is not done again, so that a run that was
stopped goes on; remove a state's lines to repeat it. Files of plots are left out.

`equivalent_mutants.jsonl` beside the report names, with a reason, mutants that cannot change any result, by part and
key as the report has them. They are tried as all others are; `--table` gives the share of killed mutants with and
without those that survived.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any

from mutations import Key, mutated, mutations

HERE = Path(__file__).resolve().parent
_RUNNING: set[int] = set()  # process groups
ALIKE, ALIKE_ELSEWHERE = 0.7, 0.8  # of statements that are taken for the same, in the same function and in another
REPORT = HERE.parent / "docs" / "reports" / "mutants.jsonl"


@dataclass(frozen=True)
class Part:
    """A part of the library, by patterns that hold before and after files move.

    Attributes:
        sources: patterns of its files below `src/moreauc`.
        tests: patterns of the tests most likely to fail on a change of it, below `tests`.
    """

    sources: Sequence[str]
    tests: Sequence[str]


_LOSSES = (
    "tpauc",
    "coupled",
    "multi_instance*",
    "*loss*",
    "*baseline*",
    "conformance",
    "sample_weight",
    "quantile*",
    "*late*",
    "*criteri*",
    "algorithms",
)
PARTS = {
    "criteria": Part(["criteria/**/*.py"], ["criteria/**/test_*.py", *(f"**/test_{name}.py" for name in _LOSSES)]),
    "core": Part(
        ["core/**/*.py"],
        [
            "core/**/test_*.py",
            *(f"**/test_{name}.py" for name in ("*pairs*", "surrogate*", "tables", "rules", "outer", "*pooling*")),
            *(
                f"**/test_{name}.py"
                for name in ("objectives", "region", "tpauc", "multi_instance*", "coupled", "algorithms", "*late*")
            ),
        ],
    ),
    "samplers": Part(["samplers/**/*.py"], ["samplers/**/test_*.py", "**/test_*sampler*.py"]),
    "metrics": Part(
        ["metrics/**/*.py"],
        [
            "metrics/**/test_*.py",
            *(
                f"**/test_{name}.py"
                for name in ("*metric*", "*selection*", "group_choice", "screening", "train", "untrained")
            ),
        ],
    ),
    "checkpoint": Part(
        ["checkpoint/**/*.py"],
        [
            "checkpoint/**/test_*.py",
            *(
                f"**/test_{name}.py"
                for name in ("checkpoint*", "*run_state*", "*resum*", "other_settings", "interrupt")
            ),
        ],
    ),
}


Calls = dict[str, dict[str, Any]]  # of each test


@dataclass(frozen=True)
class Mutant:
    """A mutant of a checkout.

    Attributes:
        part: what it belongs to.
        file: its file below `src/moreauc`.
        local: its key in the file.
        key: its key in the part, with another number where files have equal statements.
    """

    part: str
    file: str
    local: Key
    key: Key


Entry = tuple[Mutant, Key, bool]  # a mutant, the key to report it under, whether it is new


def all_mutants(package: Path, part: str) -> list[Mutant]:
    """Return the mutants of a part; equal ones in several files are numbered through."""
    files = sorted({path for pattern in PARTS[part].sources for path in package.glob(pattern)})
    files = [path for path in files if "plots" not in path.stem]
    seen: Counter[Key] = Counter()
    found = []
    for path in files:
        for mutation in mutations(ast.parse(path.read_text(encoding="utf-8"))):
            common = replace(mutation.key, occurrence=1)
            seen[common] += 1
            name = path.relative_to(package).as_posix()
            found.append(Mutant(part, name, mutation.key, replace(common, occurrence=seen[common])))
    return found


def draw(mutants: Sequence[Mutant], number: int, seed: int, without: Iterable[Key] = ()) -> list[Mutant]:
    """Return some mutants at random, the same for the same code and seed; a larger number adds to a smaller.

    The order is that of a hash of seed and key: other mutants do not change it.
    """
    left_out = set(without)
    left = [mutant for mutant in mutants if mutant.key not in left_out]
    return sorted(left, key=lambda mutant: sha256(repr((seed, mutant.key)).encode()).digest())[:number]


def find_again(key: Key, mutants: Sequence[Mutant]) -> Mutant | None:
    """Return the mutant of a key, wherever its code is now.

    That is the one of the same key; else the only one with the same statement and change, first among functions of the
    same name; else, with the same change, the one whose statement is most like the old one, in that function first.
    """

    def name(function: str) -> str:
        return function.split(".")[-1]

    same = [mutant for mutant in mutants if mutant.key.change == key.change]
    named = [mutant for mutant in same if name(mutant.key.function) == name(key.function)]
    own = [mutant for mutant in named if mutant.key.function == key.function]
    found = [mutant for mutant in own if mutant.key == key]
    for some in (own, named, same):
        found = found or [mutant for mutant in some if mutant.key.statement == key.statement]
        if len(found) == 1:
            return found[0]
    for some, cutoff in ((own, ALIKE), (same, ALIKE_ELSEWHERE)):
        alike = get_close_matches(key.statement, [mutant.key.statement for mutant in some], n=1, cutoff=cutoff)
        for mutant in some:
            if [mutant.key.statement] == alike:
                return mutant
    return None


def test_files(root: Path, part: str) -> list[str]:
    """Return the test files of a part."""
    tests = root / "tests"
    found = {path for pattern in PARTS[part].tests for path in tests.glob(pattern)}
    return sorted(path.relative_to(root).as_posix() for path in found)


def chosen_tests(calls: Calls, function: str) -> list[str]:
    """Return the tests that call a function, the fastest first, or all if none does."""
    passed = {name: test for name, test in calls.items() if test["passed"]}
    files = {name.partition("::")[0] for name, test in passed.items() if function in test["setup"]}
    found = [name for name, test in passed.items() if function in test["calls"] or name.partition("::")[0] in files]
    return sorted(found or passed, key=lambda name: passed[name]["seconds"])


def _run(copy: Path, words: Sequence[str], limit: float, **extra: str) -> int | None:
    """Run pytest in a copy of the checkout; return its exit code, or None if it took too long."""
    paths = os.pathsep.join([str(copy / "src"), str(copy), str(HERE)])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | extra
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    process = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    _RUNNING.add(process.pid)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        _RUNNING.discard(process.pid)


def _stop(number: int, frame: FrameType | None) -> None:
    """End the tests that run, which have sessions of their own, and this program."""
    for group in list(_RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    os._exit(128 + number)


def record_calls(copy: Path, part: str, work: Path, limit: float) -> Calls:
    """Run the tests of a part on the code as it is and return what each calls."""
    file = work / f"calls-{part}.json"
    if not file.exists():
        words = ["-p", "mutants_calls", *test_files(copy, part)]
        code = _run(copy, words, limit, MUTANTS_CALLS=str(file))
        if code is None or not file.exists():
            raise SystemExit(f"the tests of {part} end with {code} on the code as it is")
    calls: Calls = json.loads(file.read_text(encoding="utf-8"))
    failed = [name for name, test in calls.items() if not test["passed"]]
    _write_chosen(copy, set(calls) - set(failed))
    if _run(copy, ["--collect-only", "@chosen.txt"], limit) != 0:
        raise SystemExit(f"pytest does not find the tests of {part} by their names")
    seen = {function for test in calls.values() for function in (*test["setup"], *test["calls"])}
    functions = {f"{mutant.file}:{mutant.key.function}" for mutant in all_mutants(copy / "src" / "moreauc", part)}
    print(f"{part}: {len(calls)} tests, {len(failed)} of them skipped or failing and left out", flush=True)
    unseen = [name for name in sorted(functions - seen) if not name.endswith("<module>")]
    print(f"{part}: {len(unseen)} of {len(functions)} functions are called by none: {', '.join(unseen)}", flush=True)
    return calls


def _write_chosen(copy: Path, names: Iterable[str]) -> None:
    (copy / "chosen.txt").write_text("\n".join(names), encoding="utf-8")


def _forget_bytecode(path: Path) -> None:
    """Remove what Python may take for the compiled form of a file that was written in the same second."""
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()


def is_killed(copy: Path, mutant: Mutant, calls: Calls, limit: float) -> tuple[str, int]:
    """Return what the tests say about a mutant, and how many of them could."""
    path = copy / "src" / "moreauc" / mutant.file
    source = path.read_text(encoding="utf-8")
    chosen = chosen_tests(calls, f"{mutant.file}:{mutant.key.function}")
    seconds = min(limit, 60.0 + 5.0 * sum(calls[name]["seconds"] for name in chosen))
    _write_chosen(copy, chosen)
    _forget_bytecode(path)
    try:
        path.write_text(mutated(source, mutant.local), encoding="utf-8")
        code = _run(copy, ["-x", "@chosen.txt"], seconds)
    finally:
        path.write_text(source, encoding="utf-8")
        _forget_bytecode(path)
    return {None: "timeout", 0: "survived"}.get(code, "killed"), len(chosen)


def read_results(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def key_of(result: dict[str, Any]) -> Key:
    return Key(**result["key"])


def read_equivalent(report: Path) -> set[tuple[str, Key]]:
    """Return the mutants named beside a report as such that cannot change any result."""
    return {(line["part"], key_of(line)) for line in read_results(report.with_name("equivalent_mutants.jsonl"))}


def plan(
    root: Path, part: str, results: Sequence[dict[str, Any]], options: argparse.Namespace
) -> tuple[list[Entry], list[Key]]:
    """Return what is to be tried, and the keys that are missing."""
    mutants = all_mutants(root / "src" / "moreauc", part)
    first = next((result["state"] for result in results), options.state)
    old = [key_of(result) for result in results if result["state"] == first and result["part"] == part]
    if first == options.state:
        return [(mutant, mutant.key, False) for mutant in draw(mutants, options.per_part, options.seed)], []
    found = {key: find_again(key, mutants) for key in old}
    wanted = [(mutant, key, False) for key, mutant in found.items() if mutant is not None]
    missing = [key for key, mutant in found.items() if mutant is None]
    taken = [mutant.key for mutant, _, _ in wanted]
    number = max(len(old), options.per_part) - len(wanted)
    fresh = draw(mutants, number, options.seed, without=taken)
    return wanted + [(mutant, mutant.key, True) for mutant in fresh], missing


def table(results: Sequence[dict[str, Any]], equivalent: Collection[tuple[str, Key]] = ()) -> str:
    """Return the counts of each state and part in Markdown; `equivalent` are (part, key) that cannot be killed."""
    lines = [
        "| state | part | mutants | killed | survived | killed, % | equivalent | killed of the others, % | missing |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    groups: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        for part in (result["part"], "all"):
            own = groups[result["state"], part]
            own[result["result"]] += 1
            if result["result"] == "survived":
                own["equivalent"] += (result["part"], key_of(result)) in equivalent
    for state in dict.fromkeys(result["state"] for result in results):
        for part in [*PARTS, "all"]:
            count = groups.get((state, part))
            if count is None:
                continue
            killed, survived, alike = count["killed"] + count["timeout"], count["survived"], count["equivalent"]
            tried = killed + survived
            share, other = (f"{100 * killed / number:.0f}" if number else "" for number in (tried, tried - alike))
            row = [state, part, tried, killed, survived, share, alike, other, count["missing"]]
            lines.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(lines)


def copies(root: Path, work: Path, number: int) -> queue.Queue[Path]:
    """Return copies of a checkout to work in, one for each process."""
    made: queue.Queue[Path] = queue.Queue()
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "reports", ".*_cache")
    for place in range(number):
        target = work / f"copy{place}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(root, target, ignore=ignored)
        made.put(target)
    return made


def try_one(
    entry: Entry, made: queue.Queue[Path], calls: dict[str, Calls], options: argparse.Namespace
) -> dict[str, Any]:
    """Try a mutant on one of the copies and return its line of the report."""
    mutant, key, fresh = entry
    copy = made.get()
    try:
        result, tests = is_killed(copy, mutant, calls[mutant.part], options.timeout)
    finally:
        made.put(copy)
    line = {"state": options.state, "part": mutant.part, "result": result, "tests": tests, "file": mutant.file}
    return line | ({"fresh": True} if fresh else {}) | {"key": asdict(key)}


def run(options: argparse.Namespace, work: Path) -> list[dict[str, Any]]:
    """Do what is not done yet and return all results."""
    results = read_results(options.out)

    def note(result: dict[str, Any]) -> None:
        results.append(result)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with open(options.out, "a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        print(f"{result['part']}: {result['result']}: {key_of(result)}", flush=True)

    todo: list[Entry] = []
    for part in options.parts:
        done = {key_of(result) for result in results if (result["state"], result["part"]) == (options.state, part)}
        wanted, missing = plan(options.root, part, results, options)
        for key in missing:
            if key not in done:
                note({"state": options.state, "part": part, "result": "missing", "key": asdict(key)})
        todo += [entry for entry in wanted if entry[1] not in done]
    made = copies(options.root.resolve(), work, options.processes)

    def recorded(part: str) -> Calls:
        copy = made.get()
        try:
            return record_calls(copy, part, work, 10 * options.timeout)
        finally:
            made.put(copy)

    with ThreadPoolExecutor(options.processes) as pool:
        parts = sorted({mutant.part for mutant, _, _ in todo}, key=list(PARTS).index)
        calls = dict(zip(parts, pool.map(recorded, parts), strict=True))
        for future in as_completed([pool.submit(try_one, entry, made, calls, options) for entry in todo]):
            note(future.result())
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Put small mistakes into the code and see whether tests fail.")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="checkout to change, in copies")
    parser.add_argument("--state", default="after", help="name of what is measured; the first one draws the mutants")
    parser.add_argument("--out", type=Path, default=REPORT, help="file of results, one in a line")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help="names with commas")
    parser.add_argument(
        "--per-part", type=int, default=20, help="mutants of each part, at least those of the first state"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--processes", type=int, default=2, help="mutants tried at once")
    parser.add_argument("--timeout", type=float, default=600.0, help="most seconds for a mutant")
    parser.add_argument("--work", type=Path, help="folder for copies and for what tests call; may be used again")
    parser.add_argument("--table", action="store_true", help="only show the results")
    options = parser.parse_args()
    if options.table:
        print(table(read_results(options.out), read_equivalent(options.out)))
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        print(table(run(options, work), read_equivalent(options.out)))


if __name__ == "__main__":
    main()
