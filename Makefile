# `make plan` and `make test` work on a bare machine with Python 3.11+ and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

LIVE ?= .venv-live

.PHONY: plan prepare fetched test test-fast test-matrix test-live bench-live bench-votes check bench golden front map api schemas readme releases docs release sizes screenshots lab clean clean-compiled

plan: $(VENV)/.installed
	$(BIN)/specmargin plan qwen3.6-35b-a3b --gpu h200 --engine vllm --drafter mtp --prices laws

# Everything that is installed or downloaded, side by side: each of these waits for the network or uses one core.
prepare:
	$(MAKE) -j3 $(VENV)/.installed-dev $(LIVE)/.installed fetched

fetched: $(VENV)/bin/python
	$(BIN)/python scripts/setup_browser.py
	$(BIN)/python scripts/fetch_engines.py

# Tests start many processes: without bytecode each of them would compile the whole package again.
TESTS := OPENBLAS_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The tests of a file share what they set up, so one worker runs them all; long files first (tests/conftest.py).
test: $(VENV)/.installed-dev fetched
	$(TESTS)

# After each edit, in about a minute: without browser, golden files, published data and what is marked slow.
test-fast: $(VENV)/.installed-dev
	$(TESTS) -m 'not slow' tests/unit tests/properties tests/contracts

# 200 states of the page and 60 of the static site, against themselves and the command line, 400 grids of the site, then
# every bundled model, GPU and engine (continues where it was stopped), and their prices in every precision. `make test`
# runs samples of all.
test-matrix: $(VENV)/.installed-dev
	$(BIN)/python scripts/setup_browser.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.explorer.agreement
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.explorer.command_agreement
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.explorer.site_states
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.matrix
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.price_matrix

# Two engines at a time, one core each; the tests of a file share an engine.
test-live: $(LIVE)/.installed
	$(LIVE)/bin/python scripts/fetch_engines.py
	PYTHONDONTWRITEBYTECODE= $(LIVE)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/live

# Data-parallel ranks that vote, with expert parallelism on this processor: against every static depth under load that
# swings, then ten minutes of requests that join and leave, on two ranks and on four. About an hour and a half.
bench-votes: $(LIVE)/.installed
	$(LIVE)/bin/python -m lab.live.ranks
	SPECMARGIN_RANKS=2 SPECMARGIN_SOAK_MINUTES=10 $(LIVE)/bin/python -m pytest -rP tests/live/test_votes.py
	SPECMARGIN_RANKS=4 SPECMARGIN_SOAK_MINUTES=10 $(LIVE)/bin/python -m pytest -rP tests/live/test_votes.py

# The load swing, then a server under load against what `simulate` predicts for it.
bench-live: $(LIVE)/.installed $(VENV)/.installed-dev
	$(LIVE)/bin/python -m lab.live.swing
	$(LIVE)/bin/python -m lab.live.served .benchmarks/served-cpu
	$(BIN)/python -m lab.validation.cells .benchmarks/served-cpu --tpot-slo 60

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# Everything that shows how right the predictions are and needs no GPU; ends with the README's table of accuracy.
lab: $(VENV)/.installed-dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m lab.validation

bench: $(VENV)/.installed-dev
	for part in prices routing policy driver overhead simulator explorer loading; do \
		echo "== $$part"; $(BIN)/python -m lab.speed.$$part || exit 1; done

# Records prices, decisions and public names again and prints what moved: see tests/golden/README.md.
golden: $(VENV)/.installed-dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.golden

# The cells of the page's front table: after a change of prices, acceptance or plans. About fifteen minutes on two cores.
front: $(VENV)/.installed-dev
	$(BIN)/python scripts/update_front.py

# The list of modules in docs/map.md, from their docstrings.
map:
	$(PYTHON) scripts/update_map.py

# The verbs as Python functions, with an option per field of their requests.
api: $(VENV)/.installed-dev
	$(BIN)/python scripts/update_api.py

# The JSON Schema of every kind of catalog entry.
schemas: $(VENV)/.installed-dev
	$(BIN)/python scripts/update_schemas.py

readme: $(VENV)/.installed-dev
	$(BIN)/python scripts/update_readme.py

# Releases of vLLM and SGLang from the last six months, and the features of the plug-in that each has the parts for.
releases: $(VENV)/.installed-dev
	$(BIN)/python -m lab.live.releases

# The documentation as a site, in build/docs. Warnings fail: dead links, missing anchors, pages that nothing leads to.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo "build/docs/index.html; with search: $(PYTHON) -m http.server -d build/docs"

screenshots: $(VENV)/.installed-dev
	$(BIN)/python scripts/setup_browser.py
	$(BIN)/python scripts/screenshots.py screenshots

# sdist and wheel in dist/: reproducible, checked, and tried in an environment of their own.
release: $(VENV)/.installed-dev
	$(BIN)/python scripts/release.py

# Megabytes of the base install and of each extra, written into docs/guide/install.md.
sizes: $(VENV)/.installed-dev
	$(BIN)/python scripts/sizes.py

# Numba's cache does not see that a function called from another file has changed.
clean-compiled:
	find src tests lab -name '*.nbi' -delete -o -name '*.nbc' -delete

clean:
	rm -rf $(VENV) $(LIVE) .cache screenshots build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Specmargin needs Python 3.11 or later: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

$(VENV)/.installed: pyproject.toml $(VENV)/bin/python
	$(PIP) --editable .
	@touch $@

# Dependency groups need a pip that is newer than the one that Python 3.11 brings.
$(VENV)/.installed-dev: pyproject.toml $(VENV)/bin/python
	$(PIP) 'pip>=25.1'
	$(PIP) --editable '.[all]' --group dev
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml $(VENV)/bin/python
	$(PIP) 'pip>=25.1'
	$(PIP) --editable . --group docs
	@touch $@ $(VENV)/.installed

$(LIVE)/.installed: pyproject.toml scripts/live_environment.py
	$(PYTHON) scripts/live_environment.py $(LIVE)
	@touch $@
