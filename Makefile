# Two commands do everything on a machine with Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TESTS ?= tests
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test lint docs gpu-test wheel-test clean

demo: $(VENV)/.base
	$(BIN)/factformer demo --out demo --overwrite

# Two workers with one thread each: on a small machine that is faster than one worker with two threads.
test: $(VENV)/.dev
	$(THREADS) $(BIN)/python -m pytest -n 2 --dist loadfile $(TESTS)

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks docs lab
	$(BIN)/ruff format --check src tests benchmarks docs lab
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m lab.check_pins

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet

# A wheel, an empty environment outside of the checkout, and everything that a new user does first.
wheel-test: $(VENV)/.dev
	$(THREADS) $(BIN)/python -m pytest -m slow tests/wheel

gpu-test: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu tests

# torch first and exactly as pinned, so that no later package chooses another build of it.
$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.base
	$(PIP) install -c constraints.txt -e ".[dev]"
	touch $@

$(VENV)/.docs: $(VENV)/.base
	$(PIP) install -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
