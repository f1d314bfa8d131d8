# make quickstart   from text to a pretrained ALBERT, in about ten minutes
# make test         the tests; test-long and test-slow have what takes longer
#
# All first make a virtual environment in .venv from requirements.txt, once.
# PYTHON=... chooses the interpreter (3.10 to 3.13), TEXT=... the text.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
TEXT ?=
OUTPUT ?= quickstart_output
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: quickstart test test-long test-slow clean

quickstart: $(VENV)/.installed
	$(BIN)/python quickstart.py --text='$(TEXT)' --output_dir='$(OUTPUT)'

# A file's tests share what they set up, so each file goes to one process; the order
# of the files is that of tests/conftest.py. Processes that hanging tests have ended are
# replaced, but not for ever.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
    --max-worker-restart=3

test: $(VENV)/.installed
	$(PYTEST)

test-long: $(VENV)/.installed
	$(PYTEST) -m 'long and not slow and not gpu and not peers'

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow -o hang_seconds=7200

SUITS := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))

# An environment that is there keeps its interpreter, unless PYTHON names one.
$(VENV)/.installed: requirements.txt
	@set -e; if [ -z '$(PYTHON)' ] && $(BIN)/python -c '$(SUITS)' 2>/dev/null; then exit 0; fi; \
	for python in $(or $(PYTHON),python3.12 python3.11 python3.13 python3.10 python3 python); do \
	  if $$python -c '$(SUITS)' 2>/dev/null; then \
	    found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then \
	  echo 'make: no Python 3.10 to 3.13 with its venv module was found; install one (on Debian: python3-venv), or name it: make PYTHON=/path/to/python3.11' >&2; exit 1; fi; \
	echo "Making $(VENV) with $$($$found --version) ..."; \
	$$found -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) $(OUTPUT)
