# Each target sets up what it needs in $(VENV); a stamp file makes the second run immediate.
#   make demo ARGS="--epochs 2"          arguments for the command
#   make test PYTHON=python3.12          another interpreter, 3.11 or newer
SHELL := /bin/sh
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet
ARGS :=
# Tests start a hundred interpreters: what one has compiled, the others need not compile again.
unexport PYTHONDONTWRITEBYTECODE

EXTRAS_demo := demo
EXTRAS_test := cuda,demo,test
EXTRAS_dev := cuda,demo,test,dev
READY_test := $(or $(wildcard $(VENV)/.ready-dev),$(VENV)/.ready-test)

.PHONY: help demo test test-isa check bench test-gpu clean
.DELETE_ON_ERROR:

help:
	@echo "make demo      train a U-Net on a real photograph and write the mask over it"
	@echo "make test      run the tests"
	@echo "make test-isa  run them on the instruction sets AVX2, AVX-512 and the processor's own"
	@echo "make check     ruff, mypy, pyright, the tests of layers, house and types: before each commit"
	@echo "make bench     run the benchmarks"
	@echo "make test-gpu  run the tests that need an NVIDIA GPU (PYTHON=python3: with that Python as it is)"
	@echo "make clean     remove $(VENV), caches and builds; keeps runs/"

demo: $(VENV)/.ready-demo
	@$(VENV)/bin/genesis demo $(ARGS)

# One thread per worker: with more, the workers' threads wait for each other. --maxprocesses bounds the memory.
test: $(READY_test)
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n auto --maxprocesses=8 --dist=worksteal $(ARGS)

# Up to AVX2, up to AVX-512, and whatever oneDNN and PyTorch find. What the processor lacks is left out by itself.
test-isa: $(READY_test)
	@set -e; for limit in "ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2" \
	    "ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512" ""; do \
	    echo "== $${limit:-default}"; \
	    env $$limit OMP_NUM_THREADS=1 \
	        $(VENV)/bin/python -m pytest -q -n auto --maxprocesses=8 --dist=worksteal $(ARGS); \
	done

check: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m pytest -q -n auto --maxprocesses=4 --dist=worksteal tests/test_layers.py tests/test_house.py tests/typing

bench: $(READY_test)
	@set -e; for script in benchmarks/bench_*.py; do echo "== $$script"; $(VENV)/bin/python $$script $(ARGS); done

ifdef PYTHON
test-gpu:
	@PYTHONPATH=src $(PYTHON) -m pytest -q -m gpu $(ARGS)
else
test-gpu: $(READY_test)
	@$(VENV)/bin/python -m pytest -q -m gpu $(ARGS)
endif

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(VENV)/.created:
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        "$$python" -m venv $(VENV) && touch $@; exit; \
	    fi; \
	done; \
	echo "Genesis needs Python 3.11 or newer; $(or $(PYTHON),python3) is '$$($(or $(PYTHON),python3) --version 2>&1)'." >&2; \
	echo "Install one and name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	exit 1

# pip would compile with one process: half of its time. What does not compile here is for other Pythons.
$(VENV)/.ready-%: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Setting up $(VENV) for '$*': about a minute the first time ..."
	@$(PIP) install --no-compile -c constraints.txt -e '.[$(EXTRAS_$*)]'
	@$(VENV)/bin/python -m compileall -q -j 0 -x '/tests/' $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@
