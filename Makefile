# Trimtab. `make demo` shows it, `make test` proves it, `make lint` reads it.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The lock file pins uv as it pins everything else.
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
UV := $(BIN)/uv
DEMO_ARGS := $(if $(HEADLESS),--headless,)
PYTEST_ARGS ?=
export UV_PYTHON_DOWNLOADS := never

.PHONY: help demo servers test lint types format lock wheel clean
help:
	@echo "make demo [HEADLESS=1]  two simulated days of a shared fleet, tuned; then the dashboard"
	@echo "make test [SERVERS=1]   all tests; with SERVERS=1 those against real servers may not skip"
	@echo "make servers            InfluxDB 1 and 2, Prometheus 2 and 3, VictoriaMetrics for the tests (needs Go and Rust)"
	@echo "make lint               ruff, strict types, import contracts"
	@echo "make lock               renew requirements.lock from pyproject.toml"
	@echo "make wheel              build the wheel into dist/"

$(VENV)/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Trimtab needs Python 3.11 or newer; $(PYTHON) is %d.%d: set PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { v=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); echo "Python's venv module is not complete: install the Debian package python$$v-venv (apt-get install python$$v-venv), then run make again" >&2; exit 1; }
	@echo "installing what requirements.lock names into $(VENV); the first time it takes a minute or two"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test "$$($(UV) --version 2>/dev/null | cut -d' ' -f2)" = "$(UV_VERSION)" || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/trimtab demo $(DEMO_ARGS)

servers:
	@.ci/servers

test: $(VENV)/.installed
	$(if $(SERVERS),TRIMTAB_REQUIRE_SERVERS=1 )$(BIN)/python -m pytest -n 2 --cov --cov-report=term $(PYTEST_ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/bin/python
	@test -x $(UV) || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 --extra dev -o requirements.lock pyproject.toml

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

wheel: $(VENV)/.installed
	$(UV) build --quiet --wheel --no-build-isolation --python $(BIN)/python -o dist

clean:
	rm -rf $(VENV) dist build .coverage .pytest_cache .mypy_cache .ruff_cache
