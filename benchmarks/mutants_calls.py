"""A pytest plugin for `mutants.py`: which functions of the package each test calls, and how long it takes.

Writes the JSON file that the environment variable MUTANTS_CALLS names: for each test that passed `seconds`, `calls`
(functions as `file:qualified name`) and `setup`, those that its fixtures called, which other tests may share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGE = "src/moreauc/"


class Recorder:
    """Records the calls of each test, apart for its set-up."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._codes: set[CodeType] = set()
        self._tests: dict[str, dict[str, Any]] = {}

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    def _take(self) -> list[str]:
        found = set()
        for code in self._codes:
            before, _, name = code.co_filename.partition(PACKAGE)
            if before and name:
                function = code.co_qualname.partition(".<locals>.<")[0].replace(".<locals>", "")
                found.add(f"{name}:{function}")
        self._codes = set()
        return sorted(found)

    def _phase(self, item: pytest.Item, name: str) -> Generator[None, object, object]:
        self._codes = set()
        begin = time.perf_counter()
        sys.setprofile(self._profile)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            test = self._tests.setdefault(item.nodeid, {"seconds": 0.0, "setup": [], "calls": [], "passed": True})
            test["seconds"] += time.perf_counter() - begin
            test[name] = self._take()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record the fixtures."""
        return (yield from self._phase(item, "setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record the test."""
        return (yield from self._phase(item, "calls"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note tests that fail or are skipped."""
        if not report.passed and report.nodeid in self._tests:
            self._tests[report.nodeid]["passed"] = False

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self._file.write_text(json.dumps(self._tests), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(Path(os.environ["MUTANTS_CALLS"])))
