# Both commands work from a bare clone with Python (>= 3.10) and pip only. A second run skips the install.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.rrg_hf_installed
OUT ?= demo_output

.DEFAULT_GOAL := help
.PHONY: help install demo demo-quick test test-fast lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

install: $(STAMP) ## create .venv and install the package with the versions of constraints.txt

demo: $(STAMP) ## the main job on the embedded phantom: train PALM in three stages, generate, evaluate, write a page
	$(BIN)/rrg demo --out $(OUT)

demo-quick: $(STAMP) ## the same in about two minutes, with a weaker model
	$(BIN)/rrg demo --quick --out $(OUT)

test: $(STAMP) ## lint, type check and the whole test suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

test-fast: $(STAMP) ## the tests without the slow ones
	$(BIN)/python -m pytest -m "not slow"

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## remove caches and the demo's output
	rm -rf .mypy_cache .ruff_cache .pytest_cache $(OUT)
