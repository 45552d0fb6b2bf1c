VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

SBOM ?= sbom
MINUTES ?= 30
WORKERS ?= 2
UV := uv pip compile --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet

.PHONY: run test ci-long test-browser test-clients test-vllm test-image test-faults test-uvicorn fuzz soak rehearse check bench stack sbom lock clean

run: $(VENV)/run.stamp  ## serve on http://127.0.0.1:8000 with the embedded CPU engine
	$(BIN)/ocr-gateway serve --config routes.yaml

test: check $(VENV)/dev.stamp  ## everything a reviewer would run, on two cores
	$(BIN)/pytest --numprocesses=$(WORKERS) --cov --cov-report= --durations=25
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --include='gateway/policy/*,gateway/wire/*' --fail-under=100

test-browser: $(VENV)/dev.stamp  ## the status page in Chromium, which must be installed
	$(BIN)/pytest --no-cov -m browser tests/browser

test-clients: $(VENV)/dev.stamp  ## other people's clients before the gateway; CLIENTS="openai litellm" names some, and they are installed where missing
	$(BIN)/python -m tests.clients.install $(CLIENTS)
	$(BIN)/pytest --no-cov $(or $(CLIENTS:%=tests/clients/%/live_*.py),tests/clients/*/live_*.py)

test-vllm: $(VENV)/dev.stamp  ## the gateway before real vLLM servers; installs vLLM's CPU build (2 GB) where it is missing
	$(BIN)/python -m tests.vllm.install
	$(BIN)/pytest tests/vllm/live_*.py

test-image: $(VENV)/dev.stamp  ## both container images, built and run (as root, with buildah and debootstrap); 10 minutes the first time
	$(BIN)/pytest --no-cov tests/image/live_image.py

test-faults: $(VENV)/dev.stamp  ## the long form of tests/faults: every cell of the fault matrix, hostile clients, the process
	$(BIN)/pytest --no-cov -m faults tests/faults

test-uvicorn: $(VENV)/dev.stamp  ## requests on the lowest uvicorn that pyproject.toml allows, installed for that
	$(BIN)/pytest --no-cov tests/server/live_uvicorn.py

fuzz: $(VENV)/dev.stamp  ## 20,000 requests, 100,000 examples for the parsers, and two minutes by coverage
	$(BIN)/python -m tests.fuzz.long
	$(BIN)/python -m tests.fuzz.examples
	$(BIN)/python -m fuzz --seconds 120

soak: $(VENV)/dev.stamp  ## good, bad and faulty traffic for MINUTES; fails where memory, descriptors or tasks grow
	$(BIN)/python -m bench.soak --minutes $(MINUTES)

rehearse: $(VENV)/dev.stamp  ## rolling updates of gateways and engines under load, with a cluster's own times
	$(BIN)/python -m deploy.rehearsal gateway
	$(BIN)/python -m deploy.rehearsal engines

ci-long:  ## the long forms of what `.ci/run` tests in short: an hour and a half
	$(MAKE) test-image
	$(MAKE) test-faults
	$(MAKE) test-uvicorn
	$(MAKE) fuzz
	$(MAKE) soak
	$(MAKE) rehearse
	$(MAKE) test-clients
	$(MAKE) test-vllm
	$(MAKE) bench

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

sbom: $(SBOM)/gateway.cdx.json $(SBOM)/embedded.cdx.json  ## what each container image adds to its base, as CycloneDX

$(SBOM)/%.cdx.json: deploy/image/%.lock pyproject.toml $(VENV)/dev.stamp
	mkdir -p $(@D)
	grep -oE '^[a-z0-9.-]+==[^ ]+' $< | $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml \
	  --mc-type application --output-reproducible -o $@ -

lock:  ## resolve the dependencies anew (needs uv); an image is Linux and holds no more than it needs
	$(UV) pyproject.toml --universal --upgrade --group build --extra embedded --extra sweep -o requirements.lock
	$(UV) pyproject.toml --universal --upgrade --group build --extra embedded --extra sweep --extra tracing --group dev --group browser --group fuzz -c requirements.lock -o requirements-dev.lock
	$(UV) --group pyproject.toml:build --python-platform linux -c requirements.lock -o deploy/image/build.lock
	$(UV) pyproject.toml --python-platform linux --extra tracing -c requirements-dev.lock -o deploy/image/gateway.lock
	$(UV) pyproject.toml --python-platform linux --extra embedded --extra sweep --extra tracing -c requirements-dev.lock -o deploy/image/embedded.lock

$(VENV)/run.stamp: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/dev.stamp: requirements-dev.lock $(VENV)/run.stamp
	$(PIP) install --require-hashes -r requirements-dev.lock
	touch $@

clean:
	rm -rf $(VENV) $(SBOM) .coverage* .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
