# The two commands, train and test, set everything up themselves. PYTHON may name another interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: train test check lock clean

train: $(INSTALLED)  ## prepare the embedded corpus, train the quickstart, print loss, sample and what to do next
	$(BIN)/python scripts/prepare_data.py pydocs --output data/pydocs --tokenizer bytes
	$(BIN)/python scripts/train.py --config configs/quickstart.yaml

test: $(INSTALLED)  ## the whole suite, offline, on a CPU
	$(BIN)/python -m pytest -n auto

check: $(INSTALLED)  ## what CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed and $(PYTHON) is older; use make PYTHON=python3.12, say" >&2; exit 2; }
	@echo "setting up .venv: a few minutes, once"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

lock:  ## resolve pyproject.toml anew into requirements.lock
	echo "torch==2.13.0" > .venv/constraints.txt
	$(BIN)/pip-compile --quiet --upgrade --all-extras --strip-extras --allow-unsafe --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--constraint .venv/constraints.txt --output-file requirements.lock pyproject.toml
	sed -i.bak -e 's/^torch==\([0-9.]*\)+cpu$$/torch==\1/' -e '/^pip==/d' -e '/^#/d' -e '/^$$/d' requirements.lock
	rm requirements.lock.bak

clean:  ## remove what can be made again; data and checkpoints stay
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
