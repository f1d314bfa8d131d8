# make quickstart   from text to a pretrained ALBERT, in about four minutes
# make venv         only the virtual environment; then: source .venv/bin/activate
# make lint         ruff (unused names, common mistakes, long lines) and mypy (types)
# make test         the tests; test-long and test-slow run what takes longer
# make docs         the documentation as a site, in site/index.html
#
# Each command first creates a virtual environment if there is none: .venv from
# requirements.txt (for docs: .venv-docs from requirements-docs.txt).
# PYTHON=... chooses the interpreter (3.11 to 3.13), TEXT=... the text of quickstart.

SHELL := /bin/bash
VENV := .venv
DOCS_VENV := .venv-docs
BIN := $(VENV)/bin
TEXT ?=
OUTPUT ?= quickstart_output

.PHONY: quickstart venv lint test test-long test-slow docs clean

quickstart: $(VENV)/.installed
	$(BIN)/python quickstart.py --text='$(TEXT)' --output_dir='$(OUTPUT)'

venv: $(VENV)/.installed

# A file's tests share what they set up, so each file goes to one process; the order
# of the files is that of tests/conftest.py. A process that crashes is not replaced, with
# which xdist 3.8 can wait without end; the failure names the test.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
    --max-worker-restart=0

lint: $(VENV)/.installed
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

test: $(VENV)/.installed
	$(PYTEST)

test-long: $(VENV)/.installed
	$(PYTEST) -m 'long and not slow and not gpu and not peers'

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow --timeout=7200

docs: $(DOCS_VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict

SUITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

$(VENV)/.installed: requirements.txt
$(DOCS_VENV)/.installed: requirements-docs.txt
# An existing environment keeps its interpreter, unless PYTHON names one.
$(VENV)/.installed $(DOCS_VENV)/.installed:
	@set -e; if [ -z '$(PYTHON)' ] && $(@D)/bin/python -c '$(SUITS)' 2>/dev/null; then exit 0; fi; \
	for python in $(or $(PYTHON),python3.12 python3.11 python3.13 python3 python); do \
	  if $$python -c '$(SUITS)' 2>/dev/null; then \
	    found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then \
	  echo 'make: found no Python 3.11 to 3.13 with the venv module. Install one (on Debian: python3-venv), or name it: make PYTHON=/path/to/python3.11' >&2; exit 1; fi; \
	echo "Creating $(@D) with $$($$found --version) ..."; \
	$$found -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	if [ $(@D) = $(VENV) ]; then $(@D)/bin/python -m pip install --quiet \
	    --disable-pip-version-check --no-deps --no-build-isolation -e .; fi
	@touch $@

clean:
	rm -rf $(VENV) $(DOCS_VENV) site $(OUTPUT)
