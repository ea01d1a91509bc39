# Every target sets up .venv. PYTHON may name another interpreter (3.11 or newer): make train PYTHON=python3.12
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: train test check lock clean

train: $(INSTALLED)  ## prepare the embedded corpus, train the quickstart, print loss, a sample and the next commands
	$(BIN)/python scripts/prepare_data.py pydocs --output data/pydocs --tokenizer bytes
	$(BIN)/python scripts/train.py --config configs/quickstart.yaml

test: $(INSTALLED)  ## run all tests, offline, on a CPU
	$(BIN)/python -m pytest -n auto

check: $(INSTALLED)  ## run what CI runs: lint, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11. Name a newer one, such as make PYTHON=python3.12" >&2; exit 2; }
	@echo "setting up .venv, which takes a few minutes the first time"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

lock:  ## resolve pyproject.toml again into requirements.lock
	echo "torch==2.13.0" > .venv/constraints.txt
	$(BIN)/pip-compile --quiet --upgrade --all-extras --strip-extras --allow-unsafe --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--constraint .venv/constraints.txt --output-file requirements.lock pyproject.toml
	sed -i.bak -e 's/^torch==\([0-9.]*\)+cpu$$/torch==\1/' -e '/^pip==/d' -e '/^#/d' -e '/^$$/d' requirements.lock
	rm requirements.lock.bak

clean:  ## remove .venv, builds and caches; keep data and checkpoints
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
