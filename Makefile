# make demo: see it work.  make test: everything CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := .venv-oldest
TORCH := .venv-torch
# One more than cores: some tests wait for processes that they started.
WORKERS = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
# Tests start many processes: the first keeps its bytecode for the others.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo docs test check unit test-all test-oldest test-torch bench bench-torch bench-peers bench-study flower clean

demo: $(READY)  ## cold rows learn: FedAvg and FedSubAvg side by side on embedded data
	$(BIN)/fedslice demo --out demo

docs: $(READY)  ## all pages as one site with search, in site/; warnings are errors
	$(BIN)/python docs/build.py site
	@echo "open site/index.html"

test: $(READY)  ## style, types, import arrows and, beside them, all tests
	$(MAKE) --no-print-directory -j 2 check unit

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One arena: what a thread of the compiler has freed serves all others, a quarter of a gigabyte in all.
unit test-all: export MALLOC_ARENA_MAX = 1
unit: $(READY)
	$(BIN)/pytest -n $(WORKERS)

# Four processes: jax 0.6.2 maps so much memory for what it compiles that one process reaches Linux's limit of mappings.
test-all: $(READY)  ## besides, all of a kind where `make test` takes a few, and models that learn
	$(BIN)/pytest -n $(WORKERS) -m 'every or not every'

test-oldest: $(OLDEST)/.ready  ## all tests with the lowest versions that pyproject.toml allows
	$(OLDEST)/bin/pytest -n 4 -W ignore::DeprecationWarning

test-torch: $(TORCH)/.ready  ## what needs PyTorch, in an environment of its own
	$(TORCH)/bin/pytest -n 0 tests/frameworks tests/cli/formats tests/test_frameworks_pages.py

bench-torch: $(TORCH)/.ready  ## a module of torch beside its twin in JAX
	$(TORCH)/bin/python benchmarks/torch_ways.py

bench: $(READY)  ## speed and memory, as ratios to baselines in the same run
	$(BIN)/python benchmarks/speed.py

flower: $(READY)  ## four SuperNodes on the loopback, four algorithms: the simulation, bit by bit
	$(BIN)/python benchmarks/flower.py

bench-study: $(READY)  ## a study of 150 runs: its time, and that kills leave no trace in its page
	$(BIN)/python benchmarks/study.py

# PEERS='--only fedslice' measures fedslice anew and keeps the others' results.
bench-peers: $(READY)  ## fedslice beside other libraries; an hour, 10 GB of environments in .peers
	$(BIN)/python benchmarks/peers/bench.py $(PEERS)
	$(BIN)/python benchmarks/peers/page.py

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("fedslice needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[dev,flower]'
	touch $@

$(OLDEST)/.ready: pyproject.toml tests/oldest.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tests/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --no-compile --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet --no-compile --constraint $(OLDEST)/constraints.txt --editable '.[dev]'
	touch $@

# TORCH_VERSION=2.13.0+cpu asks for a build without the gigabytes for GPUs, where your index has one.
$(TORCH)/.ready: pyproject.toml
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --no-compile --upgrade pip
	$(TORCH)/bin/python -m pip install --quiet --no-compile --editable '.[dev]' 'torch$(if $(TORCH_VERSION),==$(TORCH_VERSION))'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(TORCH) .peers build dist demo runs site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
