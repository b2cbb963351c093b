# Set-up needs Python 3.11 or newer, git and make. Everything goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

KERNELS := $(shell find csrc -type f)
NATIVE := build/native
FUZZ := build/fuzz
FUZZ_SECONDS ?= 600

.PHONY: install demo check test test-kernels fuzz wheel docs bench-cpu clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt zoo/pyproject.toml $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./zoo
	@if command -v c++ >/dev/null; then $(BIN)/python -c "from forerun import _native as n; assert n.AVAILABLE, n.REASON"; \
	else echo "No C++ compiler: models will run on torch."; fi
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

# The kernels' own tests, in C++.
test-kernels:
	cmake -S csrc -B $(NATIVE) -DCMAKE_BUILD_TYPE=Release
	cmake --build $(NATIVE) --parallel
	ctest --test-dir $(NATIVE) --output-on-failure

# Random models, trees, batches and threads under AddressSanitizer and UndefinedBehaviorSanitizer.
fuzz:
	cmake -S csrc -B $(FUZZ) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFORERUN_CPU_SANITIZE=ON
	cmake --build $(FUZZ) --parallel
	ctest --test-dir $(FUZZ) --output-on-failure
	$(FUZZ)/fuzz_decoder $(FUZZ_SECONDS) $$(date +%s)

wheel: install
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

# Five groups of figures beside their goals. BENCH="--quick" takes minutes instead of an hour;
# BENCH="--peers-python PATH" names the interpreter that has forerun[peers].
bench-cpu: install
	$(BIN)/python -m forerun.bench.cpu $(BENCH)

# The notebook, run from top to bottom; its outputs stay in the file.
docs: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python docs/notebooks/execute.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
