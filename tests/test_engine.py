"""The engine of the studies: missing runs, their records in one file, and the command line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import joblib
import pytest
from filelock import FileLock
from typer.testing import CliRunner

from experiments import __main__ as command_line
from experiments import docs, engine, studies
from experiments.config import EXPERIMENTS
from experiments.engine import DETAILS, RECORDS, Setup, Study, Task, read_records, run_missing
from moreauc.app.report.pages import Report, Section

RUNNER = CliRunner()
DONE: list[str] = []


def square(number, broken=False):
    DONE.append(f"square {number}")
    if broken:
        raise ValueError("square: number must be whole, got a half")
    return {"square": number**2, "odd": float("nan"), "where": {"extra": 1}, "detail": {"steps": [number] * 3}}


def first(number):
    DONE.append(f"first {number}")
    return {"seconds": 7.0}


@dataclass(frozen=True, kw_only=True)
class Squares(Study):
    power: int = 2
    broken: int = -1

    @property
    def plan(self):
        return {"power": self.power}

    def tasks(self, setup):
        numbers = range(self.seeds)
        starts = [Task({"kind": "first", "number": n}, first, {"number": n}) for n in numbers]
        options = [{"number": n, "broken": n == self.broken} for n in numbers]
        runs = [Task({"kind": "run", "number": n}, square, options[n], stage=1) for n in numbers]
        return [*reversed(runs), *starts]

    def report(self, records, out):
        rows = [[str(record["number"]), str(record["square"])] for record in records if record["kind"] == "run"]
        return Report(self.title, "", {"rows": rows}, [Section("Squares", columns=["n", "n²"], rows=rows)])

    def smoke(self):
        return replace(self, seeds=1)


@pytest.fixture
def study():
    DONE.clear()
    return Squares(name="squares", title="Squares", folder="squares", seeds=3)


def run(study, out, **options):
    run_missing(study, Setup(out), study.tasks(Setup(out)), **options)


def lines(out, name=RECORDS):
    return [json.loads(line) for line in (out / name).read_text(encoding="utf-8").splitlines()]


def test_runs_are_done_once_in_stages_and_sorted(study, tmp_path):
    seen = []
    run(study, tmp_path, progress=lambda done, of: seen.append((done, of)))
    assert DONE == ["first 0", "first 1", "first 2", "square 2", "square 1", "square 0"]
    assert seen == [(n, 6) for n in range(1, 7)]
    found = lines(tmp_path)
    assert [entry["key"] for entry in found] == [f"{kind}/{n}" for kind in ("first", "run") for n in range(3)]
    assert found[4].items() >= {"kind": "run", "number": 1, "square": 1, "odd": None, "plan": {"power": 2}}.items()
    assert found[4]["where"]["extra"] == 1 and found[4]["where"]["threads"] == 1 and found[0]["seconds"] == 7.0
    assert "detail" not in found[4]
    assert lines(tmp_path, DETAILS)[2] == {"key": "run/2", "steps": [2, 2, 2]}
    before = (tmp_path / RECORDS).read_bytes(), (tmp_path / DETAILS).read_bytes()
    DONE.clear()
    run(study, tmp_path)
    assert not DONE and before == ((tmp_path / RECORDS).read_bytes(), (tmp_path / DETAILS).read_bytes())
    run(study.with_seeds(4), tmp_path)
    assert DONE == ["first 3", "square 3"]


def test_a_line_that_was_not_finished_is_made_again(study, tmp_path):
    run(study, tmp_path)
    text = (tmp_path / RECORDS).read_text(encoding="utf-8")
    (tmp_path / RECORDS).write_text(text[:-30], encoding="utf-8")  # killed while it wrote
    DONE.clear()
    with pytest.raises(ValueError, match=r"report squares: out must hold all 6 runs, got 5 in .*records\.jsonl"):
        read_records(study, tmp_path)
    run(study, tmp_path)
    assert DONE == ["square 2"] and [entry["key"] for entry in lines(tmp_path)][-1] == "run/2"
    (tmp_path / RECORDS).write_text("no record\n" + text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"records\.jsonl: line 1 must be a record, got 'no record'; remove it"):
        read_records(study, tmp_path)


def test_records_are_written_as_they_come(study, tmp_path, monkeypatch):
    """Whenever it is killed, what was done is there."""

    def stop(done, of):
        if done == 4:
            assert len(lines(tmp_path)) == 4
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, tmp_path, progress=stop)
    assert [entry["key"] for entry in lines(tmp_path)] == ["first/0", "first/1", "first/2", "run/2"]
    DONE.clear()
    run(study, tmp_path)
    assert DONE == ["square 1", "square 0"]


def test_of_equal_keys_the_last_counts_so_that_files_can_be_joined(study, tmp_path):
    run(study, tmp_path / "a")
    run(study.with_seeds(5), tmp_path / "b")
    with (tmp_path / "a" / RECORDS).open("a", encoding="utf-8") as file:
        file.write((tmp_path / "b" / RECORDS).read_text(encoding="utf-8"))
    DONE.clear()
    run(study.with_seeds(5), tmp_path / "a")
    assert not DONE and len(read_records(study.with_seeds(5), tmp_path / "a")) == 10


def test_an_error_does_not_stop_the_others(study, tmp_path):
    with pytest.raises(ValueError, match="number must be whole") as caught:
        run(replace(study, broken=2), tmp_path)
    assert caught.value.__notes__ == ["(in run/2; 1 of 6 runs failed)"]
    assert len(lines(tmp_path)) == 5
    DONE.clear()
    run(study, tmp_path)
    assert DONE == ["square 2"]


def test_a_backend_of_joblib_carries_the_runs(study, tmp_path):
    names = []
    with joblib.parallel_config(backend="threading", n_jobs=2):
        run(study, tmp_path, progress=lambda done, of: names.append(joblib.parallel.get_active_backend()[1]))
    assert names == [2] * 6 and len(lines(tmp_path)) == 6


def test_a_record_of_another_plan_is_found_before_anything_is_run(study, tmp_path):
    run(study, tmp_path)
    DONE.clear()
    message = r"squares: the record first/0 in records\.jsonl cannot be used: must be made with \{'power': 3\}, got"
    other = replace(study, power=3, seeds=9)
    for action in (lambda: run(other, tmp_path), lambda: read_records(other, tmp_path)):
        with pytest.raises(ValueError, match=message):
            action()
    assert not DONE


def test_one_process_writes_to_a_folder(study, tmp_path):
    with FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match=r"another process is writing to .*--out"):
        run(study, tmp_path)
    assert not DONE and not (tmp_path / RECORDS).exists()


# ---- the command line


@pytest.fixture
def known(study, monkeypatch, tmp_path):
    """The command line with one study, whose folder is a temporary one."""
    monkeypatch.setattr(studies, "load_studies", lambda: {"squares": study})
    monkeypatch.setattr(command_line, "REPORTS", tmp_path / "reports")
    return tmp_path / "reports" / "squares"


def call(*words):
    return RUNNER.invoke(command_line.app, [str(word) for word in words])


def test_list_run_and_report(known, tmp_path):
    assert re.search(r"squares +│ Squares +│ +0 │ +6 │ +generated", call("list").output)
    result = call("run", "squares")
    assert result.exit_code == 0 and "n²" in result.output and str(known / "index.html") in result.output
    assert re.search(r"squares +│ Squares +│ +6 │ +6", call("list").output)
    content = {file.name: file.read_bytes() for file in known.iterdir()}
    assert set(content) == {RECORDS, DETAILS, ".lock", "report.json", "index.html"}
    report = json.loads(content["report.json"])
    assert report["command"] == "python -m experiments run squares" and report["seconds"] >= 21.0
    assert report["versions"]["torch"] == lines(known)[0]["where"]["torch"]
    for words in (["report", "squares"], ["report"], ["run", "squares"]):  # each leaves all files as they were
        assert call(*words).exit_code == 0
        assert {file.name: file.read_bytes() for file in known.iterdir()} == content
    result = call("run", "squares", "--smoke", "--out", tmp_path / "small")
    assert result.exit_code == 0 and len(lines(tmp_path / "small")) == 2
    assert "run squares --smoke --out" in (tmp_path / "small" / "report.json").read_text(encoding="utf-8")


def test_it_can_be_stopped(known, monkeypatch):
    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "run_missing", stopped)
    result = call("run", "squares")
    assert result.exit_code == 130 and "the same command goes on from there" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "circles"], "NAME must be one of squares, got 'circles'"),
        (["run"], "NAME must be at least one study; only --smoke runs all of them"),
        (["run", "squares", "--dataset", "a"], "dataset must be among , got 'a'"),
        (["run", "squares", "--method", ","], "method must be at least one name, several with commas, got ','"),
        (["run", "squares", "--device", "tpu"], "device must be one of auto, cpu"),
        (["report", "squares"], "out must hold all 6 runs, got 0 in"),
        (["report", "--smoke"], "out must be given with --smoke"),
    ],
)
def test_one_line_for_what_is_refused(words, message, known):
    result = call(*words)
    assert result.exit_code == 2 and not DONE
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ") and message in line


# ---- what is committed


def test_every_study_has_a_plan_a_folder_and_a_smoke_version():
    known = studies.load_studies()
    assert list(known)[:3] == list(EXPERIMENTS)
    assert len({study.folder for study in known.values()}) == len(known)
    for name, study in known.items():
        there, planned = engine.count_records(study, command_line.REPORTS / study.folder)
        assert study.name == name and 0 < there <= planned
        keys = [task.key for task in study.tasks(Setup(Path("out")))]
        assert len(set(keys)) == len(keys)
        assert 0 < len(study.smoke().tasks(Setup(Path("out")))) <= 82


@pytest.mark.parametrize("name", ["histology", "convergence", "digit_bags", "planted_groups", "when"])
def test_committed_reports_are_those_of_their_records(name, tmp_path):
    study = studies.load_studies()[name]
    folder = command_line.REPORTS / study.folder
    (tmp_path / RECORDS).write_bytes((folder / RECORDS).read_bytes())
    command_line.make_report(study, tmp_path, f"python -m experiments run {name}")
    for file in ("report.json", "index.html"):
        made, there = ((place / file).read_text(encoding="utf-8") for place in (tmp_path, folder))
        made, there = (re.sub(r"data:image[^\"]*", "", text) for text in (made, there))  # bytes of a PNG may differ
        assert made == there


def test_tables_of_the_docs_are_those_of_the_reports():
    assert docs.update_pages(write=False) == []


def test_a_table_of_the_docs_is_written_between_its_markers(tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "TABLES", {"one": lambda: "| a |\n|---|"})
    (tmp_path / "docs").mkdir()
    page, other = tmp_path / "README.md", tmp_path / "docs" / "other.md"
    page.write_text("Before\n<!-- begin: one -->\nold\n<!-- end: one -->\nafter\n")
    other.write_text("nothing\n")
    assert docs.update_pages(root=tmp_path, write=False) == ["README.md, one"]
    assert docs.update_pages(root=tmp_path) == ["README.md, one"] and docs.update_pages(root=tmp_path) == []
    assert page.read_text() == "Before\n<!-- begin: one -->\n| a |\n|---|\n<!-- end: one -->\nafter\n"
    page.write_text("<!-- begin: two -->\n<!-- end: two -->\n")
    with pytest.raises(ValueError, match=r"must name a table of .*, got 'two'"):
        docs.update_pages(root=tmp_path)
    page.write_text("<!-- begin: one -->\n")
    with pytest.raises(ValueError, match=r"README\.md must have an end for every begin"):
        docs.update_pages(root=tmp_path)
