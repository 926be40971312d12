# Two commands do everything, set-up included:  make demo  and  make test
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# another Python gets an environment of its own: make test PYTHON=python3.13
VENV ?= .venv$(if $(filter command,$(origin PYTHON)),-$(notdir $(PYTHON)))
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
OUT ?= reports/demo

.PHONY: demo test test-lowest docs release check lint format bench study reproduce torture size mutants setup browser \
  clean
.DEFAULT_GOAL := demo

# benchmarks use models of experiments/, which is not installed
bench torture: export PYTHONPATH := $(CURDIR)

$(VENV)/.ready: pyproject.toml $(CONSTRAINTS)
	@echo "Setting up $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS) --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready

# Made-up card payments, 2 % of them fraud: a model of moreauc fit with its page, then all kinds of models as they come
# over five folds.
demo: setup
	$(BIN)/moreauc example fraud --out $(OUT)/fraud.csv --force
	$(BIN)/moreauc example fraud_test --out $(OUT)/fraud_test.csv --force
	$(BIN)/moreauc fit $(OUT)/fraud.csv --target target --test $(OUT)/fraud_test.csv \
	  --baselines lr,linear,lightgbm --out $(OUT)/fit --force
	$(BIN)/moreauc compare $(OUT)/fraud.csv --target target --trials 1 --folds 5 \
	  --methods sonx,linear,ce,lr,forest,lightgbm,xgboost --out $(OUT)/compare --force

# Each of two processes begins with half of the tests, so that fixtures of a module serve all of them; who is ready
# first takes over some of the other's.
test: lint browser
	@$(BIN)/mypy & types=$$!; $(MAKE) --no-print-directory docs; docs=$$?; wait $$types && exit $$docs
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The site, docs/_build/html/index.html. A broken link, an undocumented public name or argument, and a tutorial that
# fails are errors.
docs: setup
	@echo "Building the site"
	@$(BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going -d docs/_build/doctrees docs docs/_build/html

# All tests with the lowest versions that pyproject.toml allows.
test-lowest:
	$(MAKE) setup VENV=.venv-lowest CONSTRAINTS=lowest.txt
	.venv-lowest/bin/python -m pytest -n 2 --dist worksteal

# Builds sdist and wheel in dist/, checks them, and tries the wheel in an empty environment.
release: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt build twine
	$(BIN)/python tools/release.py

# A test opens the report pages in Chromium. Where it is missing it is installed, if that can be done without asking.
browser:
	@if [ -z "$$MOREAUC_BROWSER" ] && ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null \
	  && ! command -v google-chrome >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "Installing Chromium for the tests of the report pages"; \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium) \
	    >/dev/null 2>&1 || echo "Chromium could not be installed"; \
	fi

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Under a minute on two cores: types on one, on the other what notices most mistakes: all losses, the reports of the
# three tasks number for number, tables that are refused, the public names.
FAST := tests/test_conformance.py tests/test_golden.py tests/test_tables_io.py tests/test_surrogates.py \
  tests/test_tables.py tests/test_public_api.py
check: lint
	@$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -q -x $(FAST); tests=$$?; wait $$types && exit $$tests

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The studies of the docs: what is missing is run, tables, figures and pages are made. Some need data in the folder
# MOREAUC_DATA; those of the paper's experiments that were run on a GPU are not among them.
study: setup
	$(BIN)/python -m experiments run convergence digit_bags planted_groups adult_groups compas_groups \
	  defaults screening bag_defaults when --jobs 2
	$(BIN)/python -m experiments report
	$(BIN)/python -m experiments docs

# A tiny version of each of the paper's experiments and of the studies, on data made on the spot.
reproduce: setup
	$(BIN)/python -m experiments run --smoke --jobs 2 --out reports/smoke

bench: setup
	$(BIN)/python benchmarks/bench_step.py --out benchmarks/reports/step.json
	$(BIN)/python benchmarks/step.py --out benchmarks/reports/step_cpu.json
	$(BIN)/python benchmarks/bench_tpauc_step.py --out benchmarks/reports/tpauc_step.json
	$(BIN)/python benchmarks/bench_pairs.py --out benchmarks/reports/pairs.json
	$(BIN)/python benchmarks/bench_metrics.py --out benchmarks/reports/metrics.json
	$(BIN)/python benchmarks/bench_bags.py --out benchmarks/reports/bags.json
	$(BIN)/python benchmarks/bench_linear.py --part time --out benchmarks/reports/linear_time.json
	$(BIN)/python benchmarks/bench_boosting.py --out benchmarks/reports/boosting.json
	$(BIN)/python benchmarks/bench_fit.py --out benchmarks/reports/fit.json
	$(BIN)/python benchmarks/bench_gallery.py --out benchmarks/reports/gallery.json
	$(BIN)/python benchmarks/libauc_page.py --out benchmarks/reports/libauc.json
	test -z "$$MOREAUC_DATA" || $(BIN)/python benchmarks/bench_screening.py \
	  --data "$$MOREAUC_DATA/molecules/HIV.csv.gz" --out benchmarks/reports/screening.json
	$(BIN)/python benchmarks/bench_models.py --copies 1,2,6 --processes 1,2 --out benchmarks/reports/models.json

# Training killed with SIGKILL hundreds of times, in saves too, and compared with runs that were not; minutes.
torture: setup
	$(BIN)/python benchmarks/torture.py --kills 20 --out docs/reports/torture/report.json

# Modules, lines, names, cycles, and the files that a step and a fit pass, beside the numbers of an earlier state.
size: setup
	$(BIN)/python benchmarks/size.py --json docs/reports/size.json

# Small mistakes put into the code, and whether tests notice; goes on where it was stopped. Half an hour.
mutants: setup
	nice $(BIN)/python benchmarks/mutants.py --state after

clean:
	rm -rf .venv* dist reports docs/_build docs/tutorials docs/reference/generated .pytest_cache .mypy_cache .ruff_cache
