# The commands to remember. Each one installs what it needs into one environment, and no more.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test-core
JAX ?=
WORKERS ?= 3
MARKS ?= not cluster and not second and not rare
COUNT ?= 500
SEED ?= 0
TALLY ?= .fuzz/tally.json

BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest --dist worksteal

# Tests start many processes: each would compile all our files anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-every cluster lint bench docs fuzz wheel probe
.SECONDARY:

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16
	@echo
	@echo "  PYTHON=$(PYTHON) makes the environment in VENV=$(VENV); both can be set."

setup: $(VENV)/.ready-dev  ## Make the environment in .venv/ with everything, shardwise editable.

# The package alone. JAX is most of it.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null); \
	  echo "shardwise needs Python 3.11 or newer; '$(PYTHON)' is $${found:-not there}." >&2; \
	  echo "Name another one: make setup PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable .
	@touch $@

# And what an extra of pyproject.toml adds to it.
$(VENV)/.ready-%: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$*]'
	@touch $@

demo: $(VENV)/.ready  ## Show what shardwise is for, in a minute, the installation included.
	$(BIN)/shardwise demo

test: $(VENV)/.ready-$(EXTRAS)  ## Run the tests on WORKERS processes, in some minutes.
	$(PYTEST) -n $(WORKERS) -m "$(MARKS)" $(ARGS)

test-all:  ## The same, what takes long, and some more forms, others every day.
	$(MAKE) test EXTRAS=test MARKS="not cluster and not second and not spare"

test-every:  ## All forms of all tests: an hour.
	$(MAKE) test EXTRAS=test MARKS="not cluster and not second"

cluster: $(VENV)/.ready-$(EXTRAS)  ## Tests of several processes, some of which are killed and started again.
	$(PYTEST) -n 2 -m cluster $(ARGS)

lint: $(VENV)/.ready-lint  ## ruff, the format, pyright.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.ready-bench  ## Every ratio with its target and verdict; ARGS=--quick in two minutes.
	$(BIN)/python benchmarks/all.py $(ARGS)

wheel: $(VENV)/.ready-build  ## Build wheel and sdist into dist/, and try the wheel in a fresh environment, without Flax.
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m tests.wheel dist

docs: $(VENV)/.ready-docs  ## Build the documentation into site/, strictly.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

fuzz: $(VENV)/.ready-$(EXTRAS)  ## Random programs, simulated against real: COUNT=5000 SEED=1. Goes on where it stopped.
	$(BIN)/python -m tests.fuzz --count $(COUNT) --seed $(SEED) --workers $(WORKERS) --tally $(TALLY)

probe: $(VENV)/.ready  ## Try shardwise with another JAX, in an environment of its own: JAX=0.13.0.
	$(BIN)/python -m tests.probe $(JAX)
