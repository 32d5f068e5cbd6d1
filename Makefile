# make install   .venv with this program and all that its tests need
# make demo      a whole swarm on this machine, about 5 minutes; options: DEMO="--minutes 2"
# make check     format, lint, types, and which module may import which
# make test      every test; one file or name: TESTS="tests/diloco" or TESTS="-k ledger"
# make clean     remove .venv and what tools left behind
# The first Python on PATH that will do is taken; another one: make install PYTHON=/path/to/python3.12

SHELL := /bin/bash
PYTHON ?=
DEMO ?=
TESTS ?=

BIN := .venv/bin
STAMP := .venv/.installed
# "Will do": 3.11 to 3.13, and it can make a virtual environment.
SUITABLE := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
# One thread a process: several peers share the machine's cores, and idle threads must not spin. No download in tests.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: install demo check test clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ] || ! $(BIN)/python -c '$(SUITABLE)' 2>/dev/null; then \
	  for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    if $$python -c '$(SUITABLE)' >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo 'No Python 3.11, 3.12 or 3.13 with the module venv found. Name one: make install PYTHON=/path/to/python3.12' >&2; \
	    exit 1; \
	  fi; \
	  echo "Making .venv with $$($$found --version)"; \
	  $$found -m venv --clear .venv; \
	fi
	@echo 'Installing: a few minutes, about 1.5 GB (more where PyTorch comes with CUDA)'
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

demo: install
	@$(BIN)/swarm-diloco demo $(DEMO)

check: install
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo >.venv/lint-imports.txt || { cat .venv/lint-imports.txt; exit 1; }
	@echo 'check: format, lint, types and imports are right'

# Tests of real processes and networks (the mark "swarm") come last, one at a time: conftest.py orders them.
test: install
	@$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q $(TESTS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
