# Two commands from nothing: `make demo` (or `make test`), then `bidr search ...` from .venv/bin.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-kernels test-slow test-wheel check docs dist

demo: $(STAMP)  ## search this machine's Python documentation, minutes
	$(BIN)/bidr demo

test: check  ## everything that must pass before a commit, two files of tests at a time
	$(BIN)/pytest -n 2 --dist loadfile

# A processor of each kind: what numpy multiplies with, and what numba compiles for.
KERNELS := Haswell Nehalem $(if $(shell grep -ow avx512f /proc/cpuinfo | head -n 1),SkylakeX)
SAME_BYTES := tests/laws/test_same_bytes.py tests/laws/test_interrupted_build.py

test-kernels: $(STAMP)  ## the same bytes with the kernels of other processors
	set -e; for kernel in $(KERNELS); do \
		echo "OPENBLAS_CORETYPE=$$kernel"; OPENBLAS_CORETYPE=$$kernel $(BIN)/pytest -n 2 $(SAME_BYTES); \
	done
	NUMBA_CPU_NAME=nehalem NUMBA_CPU_FEATURES=+sse4.2 $(BIN)/pytest -n 2 $(SAME_BYTES)

test-slow: $(STAMP)  ## what takes minutes: under an hour on two cores
	$(BIN)/pytest -m slow -n 2 --dist loadfile

check: $(STAMP)  ## style, types, layers and names
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/check_names.py

dist: $(STAMP)  ## a wheel and an sdist, into dist/
	rm -rf dist
	$(BIN)/python -m build -q --outdir dist .

test-wheel: dist  ## the wheel in clean environments: the base alone, and all extras
	set -e; for extras in "" "[all]"; do \
		rm -rf build/wheel; $(PYTHON) -m venv build/wheel; \
		build/wheel/bin/python -m pip install -q -c constraints.txt "$$(ls $(CURDIR)/dist/*.whl)$$extras" pytest; \
		du -sh build/wheel/lib/python*/site-packages; \
		build/wheel/bin/python -m pytest -q -p no:cacheprovider -o addopts= --confcutdir tests/smoke tests/smoke; \
	done

docs: $(STAMP)  ## the site, into site/
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("bidr needs Python 3.11 or newer, this is %d.%d; try: make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@
