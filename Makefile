# Two commands for everybody: `make demo` and `make test`. Both set up first, both need only
# Python >= 3.11 and make. Another Python: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.swarmtrain-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq

.PHONY: demo test tests-of-processes tests-of-parts setup lint clean distclean

demo: setup
	@$(BIN)/swarmtrain demo $(ARGS)

test: lint
	@echo "== house test"
	@$(BIN)/python -m pytest -q tests/house
	@echo "== tests, in two lanes at once"
	@$(MAKE) --no-print-directory -j2 tests-of-processes tests-of-parts

# Who starts processes waits for them most of the time; comparisons fill that lane up, so that both
# take about as long.
PROCESSES := tests/e2e tests/chaos tests/demo tests/cli tests/compare tests/benchmarks

tests-of-processes: setup
	@$(BIN)/python -m pytest -q $(PROCESSES) --durations=12

tests-of-parts: setup
	@$(BIN)/python -m pytest -q tests $(addprefix --ignore=,tests/house $(PROCESSES)) --durations=12

lint: setup
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "== ruff format"
	@$(BIN)/ruff format --quiet --check .
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary

setup: $(STAMP)
	@:

# torch comes first and alone: with the rest in one call, pip may try other builds of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "swarmtrain needs Python 3.11 or newer, and $(PYTHON) is not." >&2; \
	  echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "== set-up in $(VENV) (once; torch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0
	@$(PIP) --constraint constraints.txt --editable '.[dev,fast]'
	@touch $@

clean:
	@rm -rf build dist swarmtrain.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find swarmtrain transport optimizers tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV)
