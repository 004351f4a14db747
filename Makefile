# Two commands for everybody: `make demo` and `make test`. Both set up first, both need only
# Python >= 3.11 and make. Another Python: make PYTHON=python3.12 demo
# torch from another index, for instance its CPU build:
#   make TORCH_INDEX=https://download.pytorch.org/whl/cpu setup

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.swarmtrain-installed
UNFINISHED := $(VENV)/.swarmtrain-unfinished

# pip that fails of itself, for want of a network, leaves what it can go on with; killed, it does
# not. Whatever has become of the environment: nothing is installed outside of one.
PIP := trap 'exit 130' INT TERM; \
  PIP_REQUIRE_VIRTUALENV=1 $(BIN)/python -m pip --disable-pip-version-check install
OR_STAY := || { rm -f $(UNFINISHED); exit 1; }

.PHONY: demo test test-no-torch setup lint clean distclean

demo: setup
	@$(BIN)/swarmtrain demo $(ARGS)

test: setup
	@$(MAKE) --no-print-directory -j2 lint tests-of-house
	@echo "== tests, in lanes, four at once"
	@$(MAKE) --no-print-directory -j4 $(addprefix tests-of-,$(LANES))

# The longest first: whoever is done takes the next one, and both cores are busy to the end. Who
# starts processes waits for them most of the time: other lanes keep two cores busy meanwhile.
LANES := parts late-runs early-runs trainings early-worlds late-worlds chaos protocol commands

EARLY_RUNS := $(wildcard tests/e2e/test_[a-l]*.py)
EARLY_WORLDS := $(wildcard tests/simulate/test_[a-m]*.py)

TESTS_OF_house := tests/house
TESTS_OF_early-runs := $(EARLY_RUNS)
TESTS_OF_late-runs := $(filter-out $(EARLY_RUNS),$(wildcard tests/e2e/test_*.py))
TESTS_OF_early-worlds := $(EARLY_WORLDS)
TESTS_OF_late-worlds := $(filter-out $(EARLY_WORLDS),$(wildcard tests/simulate/test_*.py))
TESTS_OF_chaos := tests/chaos
TESTS_OF_protocol := tests/transport tests/coordinator
TESTS_OF_commands := tests/demo tests/cli
TESTS_OF_trainings := tests/compare tests/pipeline tests/emulate tests/integrations tests/benchmarks
TESTS_OF_parts := tests $(addprefix --ignore=,tests/house tests/e2e tests/simulate $(TESTS_OF_chaos) \
  $(TESTS_OF_protocol) $(TESTS_OF_commands) $(TESTS_OF_trainings))

tests-of-%: setup
	@$(BIN)/python -m pytest -q $(TESTS_OF_$*) --durations=12

# What needs no torch holds on every Python from 3.11 on: transport, coordinator, settings, ledger
# and its stories. An environment of its own, made anew each time, without torch and numpy.
#   make test-no-torch PYTHON=python3.13
BARE := .venv-no-torch
TORCHLESS := tests/transport tests/coordinator tests/why tests/local_run tests/foundation tests/port_mapping \
  tests/console tests/config/test_config.py tests/config/test_run_file_page.py \
  tests/hook/test_environment.py tests/emulate/test_course.py tests/emulate/test_emulate_links.py \
  tests/house/test_imports.py
WITHOUT_TORCH = $(BARE)/bin/python -c 'import tomllib; \
  project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  wanted = project["dependencies"] + project["optional-dependencies"]["dev"]; \
  unwanted = ("torch", "numpy", "safetensors", "ruff", "mypy", "types-"); \
  print(*(one for one in wanted if not one.startswith(unwanted)), sep="\n")'

test-no-torch:
	@$(PYTHON) -m venv --clear $(BARE)
	@$(WITHOUT_TORCH) >$(BARE)/wanted.txt
	@$(BARE)/bin/python -m pip --disable-pip-version-check install -qq \
	  --constraint constraints.txt --requirement $(BARE)/wanted.txt
	@PYTHONPATH="$(CURDIR):$(CURDIR)/transport:$(CURDIR)/optimizers" $(BARE)/bin/python -m pytest -q \
	  $$(grep -rLE '^(import|from) (torch|numpy|safetensors)' --include='test_*.py' $(TORCHLESS))

lint: setup
	@echo "== ruff check"
	@$(BIN)/ruff check --quiet .
	@echo "== ruff format"
	@$(BIN)/ruff format --quiet --check .
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary

# A stamp alone proves nothing: the Python below may have gone, or the clone been moved. -I keeps
# the folder that we are in out of the search, and PathFinder pip's editable finder, which is asked
# too late: see PATHS.
IS_WHOLE = $(BIN)/python -I -c 'import importlib.metadata, importlib.machinery, os, sys; \
  found = importlib.machinery.PathFinder.find_spec("swarmtrain").origin; \
  is_this = os.path.samefile(found, "swarmtrain/__init__.py"); \
  sys.exit(not (is_this and importlib.metadata.version("torch")))' >/dev/null 2>&1

# What pip may go on in: an environment in which no installation was killed, made in this place (its
# commands say so in their first lines), whose Python still finds pip.
IS_USABLE = test -e $(VENV)/pyvenv.cfg && test ! -e $(UNFINISHED) \
  && grep -qsF '$(CURDIR)/$(BIN)/python' $(BIN)/pip \
  && $(BIN)/python -m pip --version >/dev/null 2>&1

# An editable install is found by a finder that Python asks after all folders. Beside a clone that is
# called swarmtrain the clone itself would be taken for the package; a real path comes before that.
PATHS = $(BIN)/python -I -c 'import os, sysconfig; \
  roots = [os.path.abspath(part) for part in (".", "transport", "optimizers")]; \
  file = os.path.join(sysconfig.get_path("purelib"), "swarmtrain-roots.pth"); \
  open(file, "w").write("\n".join(roots) + "\n")'

setup:
	@$(IS_WHOLE) || rm -f $(STAMP)
	@$(MAKE) --silent --no-print-directory $(STAMP) GOALS='$(or $(MAKECMDGOALS),demo)'

# torch comes first and alone: with the rest in one call, pip may try other builds of it. Somebody
# who watches sees how far its download is; a log stays short.
$(STAMP): pyproject.toml constraints.txt
	@$(IS_USABLE) || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "swarmtrain needs Python 3.11 or newer, and $(PYTHON) is not." >&2; \
	    echo "Name another one: make PYTHON=python3.12 $(GOALS)" >&2; exit 1; }; \
	  test ! -e $(VENV) || echo "== $(VENV) is of no use (set-up was killed, its Python has gone, or" \
	    "the folder was moved): it is made anew"; \
	  $(PYTHON) -m venv --clear $(VENV); }
	@touch $(UNFINISHED)
	@echo "== set-up in $(VENV), once: torch, which is large"
	@$(PIP) $$(test -t 2 || echo -qq) $(addprefix --index-url ,$(TORCH_INDEX)) torch==2.13.0 \
	  $(OR_STAY)
	@echo "== set-up in $(VENV): everything else, about a minute"
	@$(PIP) -qq --constraint constraints.txt --editable '.[dev,fast,hf,lightning,experts,postgres]' $(OR_STAY)
	@$(PATHS) $(OR_STAY)
	@mv $(UNFINISHED) $@

clean:
	@rm -rf build dist swarmtrain.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find swarmtrain transport optimizers tests -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	@rm -rf $(VENV) $(BARE)
