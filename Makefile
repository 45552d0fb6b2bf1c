VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: run test test-vllm check bench stack lock clean

run: $(VENV)/run.stamp  ## serve on http://127.0.0.1:8000 with the embedded CPU engine
	$(BIN)/ocr-gateway serve --config routes.yaml

test: check $(VENV)/dev.stamp  ## everything a reviewer would run
	$(BIN)/pytest --cov --cov-report=term --cov-fail-under=90
	$(BIN)/coverage report --include='gateway/policy/*,gateway/wire/*' --fail-under=100

test-vllm: $(VENV)/dev.stamp  ## the gateway before real vLLM servers; installs vLLM's CPU build (2 GB) where it is missing
	$(BIN)/python -m tests.vllm.install
	$(BIN)/pytest tests/vllm/live_*.py

check: $(VENV)/dev.stamp  ## format, lint, types, layers, a test file for each source file
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.mirror

bench: $(VENV)/dev.stamp  ## figures, not pass/fail
	$(BIN)/python -m bench

stack: $(VENV)/run.stamp  ## simulated engines, gateway, load, Prometheus, Grafana; ARGS='--help' for options
	$(BIN)/python -m deploy.stack $(ARGS)

lock:  ## resolve the dependencies anew (needs uv)
	for set in "requirements.lock --group build --extra embedded --extra sweep" "requirements-dev.lock --group build --extra embedded --extra sweep --group dev -c requirements.lock"; do \
	  uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --generate-hashes \
	    --no-emit-index-url --no-emit-find-links --no-header --quiet -o $$set || exit 1; done

$(VENV)/run.stamp: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/dev.stamp: requirements-dev.lock $(VENV)/run.stamp
	$(PIP) install --require-hashes -r requirements-dev.lock
	touch $@

clean:
	rm -rf $(VENV) .coverage .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
