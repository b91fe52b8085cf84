# make demo   builds a bundle, installs it without a network, and asks the model a question
# make test   the whole test suite, with the real parts; provisions what is missing where it may
# make lint   formatting, static checks, types, import rules
# make bench  ratios against cp, one hash pass and the usual script
# PYTHON=…    a Python of 3.11 or newer, when the one on PATH is older
# WORKERS=…   test processes side by side, 2 by default: most tests wait for what they started; 0 for one, as --pdb needs
# ARGS=…      further words for pytest, the demo or the benchmark

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
WORKERS ?= 2
export PYTHON

.PHONY: venv provision test lint demo bench clean
.DEFAULT_GOAL := venv

venv: $(READY)

$(READY): pyproject.toml
	python=$$(scripts/find-python) && \
	  { $(BIN)/python -m pip --version >/dev/null 2>&1 || "$$python" -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=24.2"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

provision:
	scripts/provision

test: $(READY) provision
	PYTHONUNBUFFERED=1 $(BIN)/python -m pytest --durations=15 \
	  --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder $(ARGS)

lint: $(READY)
	scripts/provision shellcheck
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -k shellcheck tests/unit

demo: $(READY)
	$(BIN)/airbundle demo $(ARGS)

bench: $(READY) provision
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist demo .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
