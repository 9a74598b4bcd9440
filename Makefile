# The verbs of this repository. `make` lists them; `make tune` is the main job.
#
# Needs make and a Python >= 3.11 with its venv module; everything else goes into .venv.
# A stamp file remembers what was installed, so a second run starts at once.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV ?= .venv
FRAMEWORKS_VENV ?= .venv-frameworks
ENGINES_VENV := .venv-engines
RAY_VENV ?= .venv-ray
MODEL ?= resnet
CONCURRENCY ?= 20
ARGS ?=
BASE ?=
RUNTIMES ?= onnx

BIN := $(VENV)/bin
# UV=uv: the environments are filled by uv, in a tenth of pip's time. It reads none of pip's settings, so
# where pip finds wheels is handed on.
UV ?=
install_into = $(if $(UV),$(UV) pip install --quiet $(PIP_FIND_LINKS:%=--find-links %) --python $(1)/bin/python,\
	$(1)/bin/python -m pip --disable-pip-version-check --quiet install)
INSTALLER := $(if $(UV),--installer uv)
BUILD_ENV := PATH="$(abspath $(BIN)):$$PATH" $(if $(UV),$(PIP_FIND_LINKS:%=UV_FIND_LINKS=%))
# What was installed uncompiled is compiled by whoever imports it first, and must be kept: every server of
# a test imports it again.
export PYTHONDONTWRITEBYTECODE :=
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
FRAMEWORKS := $(FRAMEWORKS_VENV)/.installed
ENGINES := $(ENGINES_VENV)/.installed
RAY := $(RAY_VENV)/.installed
ABUSE_VENV ?= .venv-abuse
ABUSE := $(ABUSE_VENV)/.installed
HALF ?=
STAGES ?=
SEED ?=
FRESH ?=
LOWEST_VENV := .venv-lowest
LOWEST := $(LOWEST_VENV)/.installed
# pip does not resolve to the lowest versions.
INTO_LOWEST = $(BIN)/uv pip install --quiet $(PIP_FIND_LINKS:%=--find-links %) --python $(LOWEST_VENV)/bin/python
# Of every library that is depended on some use, and a server from end to end.
ESSENTIAL := tests/flows/test_server.py $(addprefix tests/serving/,metrics models api/grpc api/http2 selection) \
	$(addprefix tests/tuner/,report store test_notebook.py)
COMPILED_TESTS := $(addprefix tests/serving/,api app cache deployment engine metrics replica spawners tensors scheduling/test_*.py wire test_*.py)
# Of `make test`: a third of their time is waiting.
WORKERS := $(shell echo $$(( $$(nproc) < 3 ? $$(nproc) + 1 : 4 )))
# Laws that `make test` tries are tried with fewer examples once more.
FEWER := LUTHIER_EXAMPLES=25 LUTHIER_SCHEDULES=50
FEWEST := LUTHIER_EXAMPLES=10 LUTHIER_SCHEDULES=10
# Whether `make test-all` tests containers.
DOCKER ?= $(DOCKER_HOST)
WHEELS := build/wheels
COMPILED_WHEEL := $(WHEELS)/.built
COMPILED := build/compiled
COMPILED_FORM := $(COMPILED)/.built
FRAMEWORKS_REQUIREMENTS := $(addprefix tests/frameworks/,requirements.txt requirements-without-dependencies.txt)
# Of the frameworks' thousands of files a tenth is ever imported: pip need not compile them all.
NOT_COMPILED := $(if $(UV),,--no-compile)

.DEFAULT_GOAL := help
.PHONY: help install tune format install-frameworks install-engines install-ray install-abuse check unit test test-all test-frameworks test-engines test-ray test-essential test-pythons test-lowest compile test-compiled images test-docker abuse abuse-quick house bench docs build release clean

help:  ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 26
	@echo "Variables: PYTHON, VENV, UV; of tune: MODEL=$(MODEL) CONCURRENCY=$(CONCURRENCY) ARGS=...; of test: PYTEST=...;"
	@echo "of images: BASE=IMAGE RUNTIMES=$(RUNTIMES) RAY=1"

install: $(DEV)  ## make .venv with everything that development needs

install-frameworks: $(FRAMEWORKS)  ## make .venv-frameworks: PyTorch, TensorFlow, XGBoost and the like, clients of the protocols

install-engines: $(ENGINES)  ## make .venv-engines: mosec, Triton and Ray, which tests of other engines and of exports start

install-ray: $(RAY)  ## make .venv-ray: the package with Ray, for tests on the machines of a cluster

install-abuse: $(ABUSE)  ## make .venv-abuse: fuzzers and hostile clients, for `make abuse`

tune: $(RUNTIME)  ## find the best configuration: MODEL at CONCURRENCY, further options in ARGS
	$(BIN)/tune --model $(MODEL) --concurrency $(CONCURRENCY) $(ARGS)

format: $(DEV)  ## format the code and mend what the linter can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

check: $(DEV)  ## linter, formatter, types, direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(DEV)  ## the tests that start no process and take no seconds, with fewer examples of each law; within a minute
	$(FEWEST) $(BIN)/pytest --unit -m "not slow" -n logical --maxprocesses 4 --dist worksteal $(PYTEST)

test: check  ## everything in `check`, then the tests; options for pytest in PYTEST
	$(BIN)/pytest -m "not engines" -n $(WORKERS) --dist worksteal $(PYTEST)

# Frameworks, engines and containers are one process each, which mostly waits: two at a time. The campaign pins
# server and clients to a core each: alone, and last.
test-all: $(DEV)  ## all that CI runs after `make test`: the other verbs of tests; those of Docker where DOCKER_HOST is set
	@! $(BIN)/python compiled/build.py --check || { $(MAKE) test-compiled && $(MAKE) release; }
	$(MAKE) test-lowest
	$(MAKE) test-pythons NEWEST=1
	$(MAKE) --jobs=2 --output-sync $(if $(DOCKER),test-docker) test-frameworks test-engines test-ray
	$(MAKE) abuse-quick

test-frameworks: $(FRAMEWORKS)  ## kinds of other libraries, and clients of the protocols, in an environment of their own
	$(FRAMEWORKS_VENV)/bin/python -m pytest -m frameworks tests/frameworks $(PYTEST)

test-engines: $(DEV) $(ENGINES)  ## small studies of mosec and Triton; Triton and Ray on what is exported for them
	$(BIN)/pytest -m engines tests/engines/test_named.py $(PYTEST)
	$(ENGINES_VENV)/bin/python -m pytest tests/engines/test_export_ray.py tests/engines/test_export_triton.py $(PYTEST)

test-ray: $(RAY)  ## replicas and studies on the machines of a real Ray cluster, which are killed
	$(RAY_VENV)/bin/python -m pytest tests/cluster $(PYTEST)

test-essential: $(DEV)
	$(FEWER) $(BIN)/python -m pytest -m "not slow" -n logical --maxprocesses 4 --dist worksteal $(ESSENTIAL) $(PYTEST)

test-pythons: $(BIN)/python  ## the essential tests on every other Python from 3.11 on that is here; with NEWEST=1 on the newest
	@others=$$(.ci/pythons $(BIN)/python$(if $(NEWEST), | tail -n 1)); [ -n "$$others" ] || echo "no other Python from 3.11 on is here"; \
	for python in $$others; do version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "== Python $$version"; $(MAKE) test-essential PYTHON="$$python" VENV=.venv-$$version || exit 1; done

test-lowest: $(LOWEST)  ## the essential tests on the lowest versions that pyproject.toml admits
	$(FEWER) $(LOWEST_VENV)/bin/python -m pytest -m "not slow" -n logical --maxprocesses 4 --dist worksteal $(ESSENTIAL) $(PYTEST)

compile: $(COMPILED_FORM)  ## a copy of the checkout with the request path compiled, in build/compiled; needs a C compiler

test-compiled: $(COMPILED_FORM)  ## the tests of what is compiled on that copy
	cd $(COMPILED) && $(FEWER) LUTHIER_FORM=compiled PYTHONPATH=$(CURDIR)/$(COMPILED) $(abspath $(BIN))/python -m pytest -n logical --maxprocesses 4 --dist worksteal $(COMPILED_TESTS) $(PYTEST)

images: $(DEV)  ## the images of the server and of replicas, from wheels and without network in the build: BASE, RUNTIMES, RAY=1
	@! $(BIN)/python compiled/build.py --check || $(MAKE) $(COMPILED_WHEEL)
	$(BIN)/python docker/build_images.py $(BASE:%=--base %) --runtimes $(RUNTIMES) $(RAY:%=--ray) --wheel $(WHEELS)

test-docker: $(DEV)  ## the tests of containers, with the engine that DOCKER_HOST names and the images of `make images`
	LUTHIER_NEED_DOCKER=1 $(BIN)/pytest tests/containers tests/contracts tests/serving/deployment/test_shared_pool.py $(PYTEST)

abuse: $(ABUSE)  ## the campaign of abuse, some 45 minutes each HALF; SEED, STAGES=C,D1, FRESH=1; see tests/abuse/README.md
	$(ABUSE_VENV)/bin/python -m tests.abuse $(HALF:%=--half %) $(STAGES:%=--stages %) $(SEED:%=--seed %) $(if $(FRESH),--fresh)

abuse-quick: $(ABUSE)  ## the same in small, at most six minutes
	$(ABUSE_VENV)/bin/python -m tests.abuse --quick --keep-nothing $(STAGES:%=--stages %) $(SEED:%=--seed %)

house: $(DEV)  ## sizes of the product against their limits, and where its lines went
	$(BIN)/python benchmarks/house.py $(ARGS)

bench: $(DEV)  ## benchmarks against peers, one after another; see benchmarks/README.md
	$(BIN)/python benchmarks/peers/install.py
	@failed=0; for script in load_generator serving_core resnet_peers grpc_rate triton_client batching_gain overload replica_kills version_switch idle_connections apache_bench tune_default; do \
		echo "== benchmarks/$$script.py"; $(BIN)/python benchmarks/$$script.py || failed=1; done; exit $$failed

docs: $(DEV)  ## write the pages that are made from the code
	$(BIN)/python docs/generate_settings.py
	$(BIN)/python docs/generate_commands.py
	$(BIN)/python docs/generate_architecture.py

build: $(DEV)  ## wheel and source archive in dist/
	rm -f dist/luthier-*
	$(BUILD_ENV) $(BIN)/python -m build $(INSTALLER)

release: build $(COMPILED_WHEEL)  ## those and a compiled wheel, each tried in an empty environment: it serves and tunes
	cp $(WHEELS)/luthier-*.whl dist/
	LUTHIER_RELEASE=$(CURDIR)/dist UV=$(UV) $(BIN)/pytest -n logical --maxprocesses 2 tests/release $(PYTEST)

clean:  ## remove environments, caches and built files; runs/ stays
	rm -rf $(VENV) $(FRAMEWORKS_VENV) $(ENGINES_VENV) $(RAY_VENV) $(ABUSE_VENV) $(LOWEST_VENV) .venv-3.* benchmarks/.peers dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python >= 3.11 found; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is not a Python >= 3.11; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "making $(VENV)"
	@"$(PYTHON)" -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "make: $(PYTHON) lacks its venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }

$(RUNTIME): pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV) (once; about a minute)"
	$(call install_into,$(VENV)) --editable '.[gpy,sklearn,skopt]'
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	@echo "installing with development tools into $(VENV) (once; one to two minutes)"
	$(call install_into,$(VENV)) --editable '.[dev]'
	@touch $(RUNTIME) $@

$(COMPILED_WHEEL): $(shell find compiled search_spaces serving tuner pyproject.toml README.md -type f -not -name '*.pyc') | $(DEV)
	$(BUILD_ENV) $(BIN)/python compiled/wheel.py $(WHEELS) $(INSTALLER)
	@touch $@

$(COMPILED_FORM): $(COMPILED_WHEEL) $(shell find docs examples tests -type f -not -name '*.pyc') | $(DEV)
	$(BIN)/python compiled/build.py $(COMPILED) --wheel $(WHEELS)
	@touch $@

$(LOWEST): pyproject.toml | $(BIN)/python
	@echo "installing the lowest versions into $(LOWEST_VENV) (once; seconds)"
	@$(BIN)/python -m pip --disable-pip-version-check --quiet install uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST_VENV)
	$(INTO_LOWEST) --resolution lowest-direct --editable '.[docker,redis,sklearn,skopt]'
	@$(BIN)/uv pip freeze --quiet --exclude-editable --python $(LOWEST_VENV)/bin/python > $(LOWEST_VENV)/versions.txt
	$(INTO_LOWEST) --constraints $(LOWEST_VENV)/versions.txt hypothesis pytest pytest-asyncio pytest-randomly \
		pytest-timeout pytest-xdist 'tritonclient[grpc,http]'
	@touch $@

$(FRAMEWORKS): $(FRAMEWORKS_REQUIREMENTS) | $(BIN)/python
	@echo "installing PyTorch, TensorFlow, XGBoost and the like, and clients into $(FRAMEWORKS_VENV) (once; two to three minutes)"
	@$(BIN)/python -m venv $(FRAMEWORKS_VENV)
	$(call install_into,$(FRAMEWORKS_VENV)) $(NOT_COMPILED) --requirement $(word 1,$^)
	$(call install_into,$(FRAMEWORKS_VENV)) $(NOT_COMPILED) --requirement $(word 2,$^) --no-deps
	@touch $@

$(ENGINES): tests/engines/requirements.txt | $(BIN)/python
	@echo "installing mosec, Triton and Ray into $(ENGINES_VENV) (once; two minutes)"
	@$(BIN)/python -m venv $(ENGINES_VENV)
	$(call install_into,$(ENGINES_VENV)) $(NOT_COMPILED) --requirement $<
	@touch $@

$(RAY): tests/cluster/requirements.txt pyproject.toml | $(BIN)/python
	@echo "installing Ray into $(RAY_VENV) (once; a minute)"
	@$(BIN)/python -m venv $(RAY_VENV)
	$(call install_into,$(RAY_VENV)) $(NOT_COMPILED) --editable '.[ray,sklearn]' --requirement $<
	@touch $@

$(ABUSE): tests/abuse/requirements.txt pyproject.toml | $(BIN)/python
	@echo "installing what abuses into $(ABUSE_VENV) (once; a minute)"
	@$(BIN)/python -m venv $(ABUSE_VENV)
	$(call install_into,$(ABUSE_VENV)) --editable '.[docker,redis,sklearn]' --requirement $<
	@touch $@
