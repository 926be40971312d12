# Two commands do everything, set-up included:  make demo  and  make test
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
OUT ?= reports/convergence

.PHONY: demo test check format bench study setup clean
.DEFAULT_GOAL := demo

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready

demo: setup
	$(BIN)/moreauc study convergence --steps 3000 --seeds 8 --out $(OUT)

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The figures and numbers of the docs, and the timings (minutes, not part of the tests).
study: setup
	$(BIN)/moreauc study convergence --out docs/reports/convergence

bench: setup
	$(BIN)/python benchmarks/bench_step.py --out benchmarks/reports/step.json

clean:
	rm -rf $(VENV) reports .pytest_cache .mypy_cache .ruff_cache
