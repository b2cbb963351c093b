# Set-up needs Python 3.11 or newer, git and make. Everything goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: install demo check test docs clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt zoo/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./zoo
	touch $@

# The main job on the models that come with forerun: text, tokens a second, speed-up.
demo: install
	$(BIN)/forerun generate --prompt-file docs/demo_prompt.txt --temperature 0 --max-tokens 160 --compare

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: install
	$(BIN)/pytest

# The notebook, run from top to bottom; its outputs stay in the file.
docs: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/notebooks/execute.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
