# make demo    sets up what it needs, trains a small super-token segmenter on built-in scenes and draws what it sees
# make test    sets up what it needs (with mmcv's compiled operators) and runs the whole test suite
# Others: build-ops, lint, format, clean, distclean.
#   VENV=FOLDER         the virtual environment (default .venv of the checkout)
#   PYTHON=PROGRAM      the Python that makes it (default python3; 3.10 or newer)
#   TORCH_ARGS="..."    more arguments for pip when it fetches torch, e.g. --index-url https://download.pytorch.org/whl/cpu
#   WORKERS=NUMBER      processes that share the tests, of one thread each (default 2; 0: one process, readable with a debugger)
#   ARGS="..."          more arguments for the program that the target runs, e.g. make test ARGS="-k token_map"

SHELL := bash
VENV ?= .venv
PYTHON ?= python3
ARGS ?=
WORKERS ?= 2
PY := "$(VENV)/bin/python"
SETUP := bash .ci/setup_venv "$(VENV)"
export PYTHON TORCH_ARGS
# They would lead pip or Python away from the environment.
unexport PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX

.DEFAULT_GOAL := help
.PHONY: help demo test env-demo env-test build-ops lint format clean distclean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: env-demo
	$(PY) -m mmvit_plugins.cli.demo $(ARGS)

test: env-test
	$(PY) -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

env-demo:
	@$(SETUP) demo

env-test:
	@$(SETUP) test

build-ops: env-demo
	$(PY) -m mmvit_plugins.cli.build_operators $(ARGS)

lint:
	@$(SETUP) lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format:
	@$(SETUP) lint
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# What builds and runs leave behind; the environment and the kept wheels stay. `distclean` removes the environment as well.
clean:
	rm -rf build dist *.egg-info
	rm -rf .pytest_cache .ruff_cache .hypothesis work_dirs/demo
	find . -name __pycache__ -not -path "./$(VENV)/*" -not -path './.git/*' -prune -exec rm -rf {} +

distclean: clean
	@test ! -e "$(VENV)" || test -e "$(VENV)/pyvenv.cfg" || { echo "$(VENV) is no virtual environment: not removed"; exit 1; }
	rm -rf "$(VENV)"
