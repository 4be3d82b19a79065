# Set-up, the main job and the tests. `make` alone explains.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# two files at a time, each in one process: engines under test take one thread each
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install bench test test-slow test-report lint clean

help: ## this text
	@echo "Needs Python 3.11 or newer, make and a C++ compiler. Everything else is installed into $(VENV)."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Another interpreter: make PYTHON=python3.12 ..."

install: $(STAMP) ## make .venv and install everything (the other targets do it when needed)

bench: $(STAMP) ## the main job: python -m harness +path=dsa_mrv2 concurrency=1,1024
	$(BIN)/python -m harness +path=dsa_mrv2 concurrency=1,1024

test: $(STAMP) ## the test suite, minutes
	$(PYTEST) -m "not slow"

test-slow: $(STAMP) ## the long suites
	$(PYTEST) -m slow

test-report: $(STAMP) ## the report in headless Chromium, where there is one; PICTURES=docs keeps screenshots
	$(BIN)/python -m pytest -m slow -rs tests/reports/browser $(if $(PICTURES),--screenshots $(PICTURES))

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

clean: ## remove .venv, caches and build output; results/ stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# the stamp is written last: an interrupted installation starts again
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than 3.11; use another one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || { \
	  echo "$(PYTHON) cannot make environments; install its venv module (Debian: python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[eval,dev]"
	@touch $@
