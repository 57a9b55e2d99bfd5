# make demo: see it work.  make test: everything CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := .venv-oldest

.PHONY: demo test check unit test-all test-oldest bench bench-peers bench-study flower clean

demo: $(READY)  ## cold rows learn: FedAvg and FedSubAvg side by side on embedded data
	$(BIN)/fedslice demo --out demo

test: check unit  ## style, types, import arrows, then all tests

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/pytest -n auto

# Four processes: jax 0.6.2 maps so much memory for what it compiles that one process reaches Linux's limit of mappings.
test-all: $(READY)  ## the laws about the engine for every recipe, not for one of each structure alone
	$(BIN)/pytest -n auto -m 'every or not every'

test-oldest: $(OLDEST)/.ready  ## all tests with the lowest versions that pyproject.toml allows
	$(OLDEST)/bin/pytest -n 4 -W ignore::DeprecationWarning

bench: $(READY)  ## speed and memory, as ratios to baselines in the same run
	$(BIN)/python benchmarks/speed.py

flower: $(READY)  ## four SuperNodes on the loopback, four algorithms: the simulation, bit by bit
	$(BIN)/python benchmarks/flower.py

# PEERS='--only fedslice' measures fedslice anew and keeps the others' results.
bench-study: $(READY)  ## a study of 150 runs: its time, and that kills leave no trace in its page
	$(BIN)/python benchmarks/study.py

bench-peers: $(READY)  ## fedslice beside other libraries; an hour, 10 GB of environments in .peers
	$(BIN)/python benchmarks/peers/bench.py $(PEERS)
	$(BIN)/python benchmarks/peers/page.py

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("fedslice needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev,flower]'
	touch $@

$(OLDEST)/.ready: pyproject.toml tests/oldest.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tests/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .peers build dist demo runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
