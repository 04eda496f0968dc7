# Needs Python >= 3.11 with venv and pip, and make. Everything else comes from the package index that pip knows.
#
#   PYTHON=python3.12   the Python that the virtual environment is made with
#   VENV=.venv          where it is made
#   ARGS="--port 9000"  more words for nproxy serve, or for pytest

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

bin  := $(VENV)/bin
pip  := $(bin)/python -m pip --disable-pip-version-check install --retries 5 --constraint requirements/constraints.txt
pins := pyproject.toml requirements/constraints.txt

.DEFAULT_GOAL := help
.PHONY: help serve test test-system docs dashboards kernels conformance-mutations fuzz soak bench-gateway bench-engine compatibility lint compiled format clean
.DELETE_ON_ERROR:

help:  ## What can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 24

serve: $(VENV)/.engine  ## Install what is needed and serve the default model on port 8000
	$(bin)/nproxy serve $(ARGS)

# Half of the time is waiting for processes that start: three at a time take five sixths of the time of two, on two cores.
# Some hundred are started: none shall compile again what another has compiled, whatever the shell says.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.dev  ## Lint, types, import contracts and all tests of nproxy by itself
	$(MAKE) --jobs 2 --output-sync lint compiled
	$(bin)/python -m pytest --ignore tests/system --numprocesses 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-system: $(VENV)/.dev  ## Install other people's servers and clients, and run the tests that need them
	PYTHON="$(abspath $(bin))/python" tests/system/install.sh
	$(bin)/python -m pytest tests/system --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

docs: $(VENV)/.dev  ## Write the pages of docs/ that are made from the code
	$(bin)/python -m docs.generate

kernels: $(VENV)/.dev  ## Compile all kernels for GPUs, none is needed; write bench/results/gpu/compile.json (minutes)
	$(bin)/python -m tests.system.packages triton-oldest
	PYTHONPATH=.venvs/triton-oldest $(bin)/python bench/gpu/compile.py --record bench/results/gpu/compile.json
	$(bin)/python bench/gpu/compile.py --record bench/results/gpu/compile.json
	$(bin)/python bench/gpu/compile.py --capability 89 --record bench/results/gpu/compile.json

conformance-mutations: $(VENV)/.dev  ## Switch off one rule after another and see its tests fail (minutes)
	$(bin)/python -m tests.conformance.mutate $(ARGS)

fuzz: $(VENV)/.dev  ## Decode and merge a million streams, parse as many requests, everything about them drawn (many minutes)
	$(bin)/python -m tests.conformance.fuzz $(ARGS)

soak: $(VENV)/.dev  ## All load bars in their long forms, one after the other; write bench/results/load/ and docs/load.md (an hour)
	$(bin)/python -m bench.load all

bench-gateway: $(VENV)/.dev  ## The gateway beside other gateways, which are installed first (a C compiler is needed): docs/performance.md
	$(bin)/python -m bench.gateway $(ARGS)

bench-engine: $(VENV)/.dev  ## The engine on the CPU beside its peers, which are installed first (a C++ compiler is needed): docs/performance.md
	$(bin)/python -m bench.engine $(ARGS)

compatibility: $(VENV)/.dev  ## Install real servers (a compiler is needed), probe them, play the cases, write docs/compatibility.md
	$(bin)/python -m tests.compatibility $(ARGS)

dashboards: $(VENV)/.dev  ## Write grafana/dashboards/ anew from grafana/source/
	$(bin)/python -m grafana.source

lint: $(VENV)/.dev  ## Check style, types and the arrows between rooms
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/lint-imports

# On one core while mypy uses another: three processes that start with nothing compiled would each compile everything.
# What cannot be collected is reported by the tests themselves.
compiled: $(VENV)/.dev
	-$(bin)/python -m pytest --ignore tests/system --collect-only --quiet >/dev/null

format: $(VENV)/.dev  ## Put imports and layout in order
	$(bin)/ruff check --fix
	$(bin)/ruff format

clean:  ## Remove what was made here; the model cache stays
	rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find nproxy engine tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# Each file says: this much is installed, for the pins as they were then.
$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nproxy needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.engine: $(VENV)/.python $(pins)
	$(pip) pip
	$(pip) --editable '.[engine]'
	touch $@

$(VENV)/.dev: $(VENV)/.engine
	$(pip) --group dev
	touch $@
