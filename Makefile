# `make train` and `make test` do all their own set-up: Python 3.11 or newer is enough.
PYTHON ?= python3
VENV   ?= .venv
ALGO   ?= ppo
ENV    ?= CartPole-v1
ARGS   ?=
BIN    := $(VENV)/bin

.PHONY: train test test-system lint bench docs clean

train: $(VENV)/.installed    ## train an agent: make train ALGO=ppo ENV=Pendulum-v1 ARGS="--seed 1"
	$(BIN)/podium train $(ALGO) $(ENV) $(ARGS)

test: $(VENV)/.installed-dev    ## run every test: make test ARGS="-k ppo"
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-system: $(VENV)/.installed-dev    ## each extra alone, and clusters of test machines; several minutes
	$(BIN)/python -m pytest -n 0 tests/system $(ARGS)

lint: $(VENV)/.installed-dev    ## style, types and the layer contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev    ## Podium beside its peers; makes a virtual environment for each
	$(BIN)/python benchmarks/throughput.py $(ARGS)

docs: $(VENV)/.installed-dev    ## run every command of the README and docs
	$(BIN)/python -m pytest tests/docs $(ARGS)

clean:    ## remove the virtual environments; runs stay
	rm -rf $(VENV) .venvs

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Podium needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[envpool]'
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.installed
