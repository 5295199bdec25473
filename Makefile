# The commands to remember. Each one makes the environment first, if it is not there yet.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
WORKERS ?= 3
MARKS ?= not cluster and not second and not long
COUNT ?= 500
SEED ?= 0
TALLY ?= .fuzz/tally.json

BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(EXTRAS)

# Tests start many processes: each would compile all our files anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test cluster lint bench docs fuzz wheel

help:  ## Show this list.
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16
	@echo
	@echo "  PYTHON=$(PYTHON) makes the environment in VENV=$(VENV); both can be set."

setup: $(READY)  ## Make the environment in .venv/ and install shardwise into it, editable.

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null); \
	  echo "shardwise needs Python 3.11 or newer; '$(PYTHON)' is $${found:-not there}." >&2; \
	  echo "Name another one: make setup PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(READY)  ## Show what shardwise is for, in about a minute.
	$(BIN)/shardwise demo

test: $(READY)  ## Run the tests, on WORKERS processes.
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "$(MARKS)" $(ARGS)

cluster: $(READY)  ## Tests of several processes, some of which are killed and started again.
	$(BIN)/python -m pytest -n 2 --dist worksteal -m cluster $(ARGS)

lint: $(READY)  ## ruff, the format, pyright.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(READY)  ## Every ratio with its target and verdict; ARGS=--quick in two minutes.
	$(BIN)/python benchmarks/all.py $(ARGS)

wheel: $(READY)  ## Build wheel and sdist into dist/, and try the wheel in a fresh environment, without Flax.
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m tests.wheel dist

docs: $(READY)  ## Build the documentation into site/, strictly.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

fuzz: $(READY)  ## Random programs, simulated against real: COUNT=5000 SEED=1. Goes on where it stopped.
	$(BIN)/python -m tests.fuzz --count $(COUNT) --seed $(SEED) --workers $(WORKERS) --tally $(TALLY)
