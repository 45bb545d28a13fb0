# Two commands matter: `make study` and `make test`. Everything they need comes from this file and the package registries.
PYTHON ?= python3
STUDY  ?= studies/embedding-norm.toml
VENV   := .venv
BIN    := $(VENV)/bin
# Where an environment switches bytecode off, every test process would compile 170 files of tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-dev setup-more setup-docs browser study test test-more docs lint format types check golden replicate-quick decisions torture audit clean

help:
	@echo "make study [STUDY=studies/quick.toml]   set up, fetch the data, train every run of the study"
	@echo "make test                               set up, run the tests"
	@echo "make test-more                          set up more, run those that need Chromium, Ray, transformers, Triton or notebooks"
	@echo "make check                              lint, format check and types (after make test)"
	@echo "make docs                               build the documentation into site/; a broken link fails"
	@echo "make decisions                          error rates of the rules over simulated studies; fails beyond their limits (an hour)"
	@echo "make torture                            kills, damaged records, full disks and more, with counts (ten minutes and more)"
	@echo "make audit                              known vulnerabilities of the pinned dependencies (needs a network)"
	@echo "make replicate-quick                    small versions of the replications and of the instrument's own proofs"

$(VENV)/.made: Makefile
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(VENV)/.installed-more: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,more]"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev
setup-more: $(VENV)/.installed-more
setup-docs: $(VENV)/.installed-docs

study: setup
	$(BIN)/ablationlab run $(STUDY)

# Three processes keep two cores busy: with two, a fifth of the time was waiting for servers, signals and browsers.
test: setup-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal

# The page in a real browser, the libraries that we work with or compare with, and where there is pdflatex, the LaTeX source.
test-more: setup-more browser
	$(BIN)/python -m pytest -n 3 --dist worksteal -m more

# Debian's Chromium, where there is none and it may be installed.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name && break; done >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "No Chromium, and no right to install it: the tests of the page in a browser will be skipped."

# Offline; the reference is generated from the code. To search it: python3 -m http.server --directory site
docs: setup-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: setup-dev
	$(BIN)/ruff check .

format: setup-dev
	$(BIN)/ruff format .

types: setup-dev
	$(BIN)/mypy

check: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Only the first is a real replication (the pilot's model is tiny); the others show that the path works, and say so.
replicate-quick: setup
	$(BIN)/ablationlab replicate pilot --quick --no-report
	$(BIN)/ablationlab replicate nanogpt --quick --no-report
	$(BIN)/ablationlab replicate takase --quick --no-report
	$(BIN)/ablationlab replicate lescao --quick --no-report
	$(BIN)/ablationlab run studies/validation-quick.toml --no-report
	$(BIN)/ablationlab validate results/validation-quick

# Every claim of the rules over some hundred kinds of study, against the rate that it may have; and power in closed form.
decisions: setup
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/trained.py --check
	$(BIN)/python benchmarks/power.py --check
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/decisions.py --jobs 2 --studies 800 --check

# Attacks with counts (benchmarks/torture); SIZE = 0.2 makes a fifth of them.
SIZE ?= 1
torture: setup-more
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.torture --size $(SIZE)

# Not part of CI, which has no network: the database of vulnerabilities is asked for every pinned package. Strict, because
# pip-audit else calls a package fine that the database did not answer for.
audit: $(VENV)/.made
	$(BIN)/python -m venv --clear $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet pip-audit
	$(VENV)/audit/bin/python -m pip_audit --strict --requirement constraints.txt --no-deps --disable-pip

golden: setup-dev
	$(BIN)/python tests/training/test_golden.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
