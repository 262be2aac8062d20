# The only commands a newcomer needs. Each sets up what it needs; a second run is quick.
#   make demo    train a real network on two nodes, kill a worker, then a node, see it resume
#   make test    the gate: what every change has to pass (make test ARGS="-k static" for some)
#   make test-all  all tests, also with real Slurm, mpirun and Redis; the sanitizers; a soak of some minutes
#   make soak-sim SEEDS=200000  that many jobs in simulated time, to which anything may happen
#   make test-slurm  those with a real Slurm and real mpiruns, which it installs on Debian and Ubuntu
#   make test-torch VERSION=2.15.0  the tests that touch torch, with another torch, in an environment of its own
#   make lint    formatting, types, layers, generated pages, links
#   make docs    the site, from docs/ and the docstrings: build/site/index.html
#   make bench   every benchmark, each beside torch's own in the same run; the page is build/bench/report.html
#   make sanitize  the C++ tests under the address, undefined-behaviour and thread sanitizers; the fuzzer for 10 s
#   make fuzz      the fuzzer of the wire for longer (make fuzz FUZZ_SECONDS=600)
#   make soak    things go wrong at random in a job on several hosts, for minutes or hours (ARGS="--backend=etcd --seed=7")
#   make native  build the native store after a change to native/ (test and bench do so themselves)
#   make wheels  the sdist, and wheels for every platform and Python, each tried that can run here: dist/
#   make release VERSION=1.2.3  the same as a release: version, changelog, all checks; nothing is uploaded
#   make clean   remove what the others made
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSTRAINTS := constraints.txt
NATIVE := build/native/.built
NATIVE_TESTS := build/sanitize-none/.built
NATIVE_SOURCES := CMakeLists.txt $(wildcard native/*.txt native/src/* native/include/rdzv/* native/bindings/* native/bench/*)

.PHONY: demo test test-all thorough test-slurm soak-sim test-torch lint docs wheels release bench soak native sanitize sanitize-address sanitize-thread fuzz clean setup
setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS) tests/kits/quick.pth
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV): some minutes, once ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c $(CONSTRAINTS) \
	  "$$(grep '^torch==' $(CONSTRAINTS))" -e '.[dev,examples]'
	@# a plain path each instead of the build tool's import hook, so that PYTHONPATH can put a changed copy in front
	@site="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	  printf '%s\n' '$(CURDIR)/src' '$(CURDIR)/src/launcher' > "$$site/_editable_skbc_rdzv_plugins.pth" && \
	  cp tests/kits/quick.pth "$$site/rdzv_quick_tests.pth"
	@# pip compiles one file after the other, this as many as there are processors; a few are not for this Python
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

native: $(NATIVE) $(NATIVE_TESTS)

$(NATIVE_TESTS): $(STAMP) $(NATIVE_SOURCES) $(wildcard native/tests/*)
	@echo "building the C++ tests: a minute or two ..."
	@native/tests/build.sh none rdzv_tests rdzv_fuzz
	@touch $@

$(NATIVE): $(STAMP) $(NATIVE_SOURCES)
	@command -v $${CXX:-c++} >/dev/null || { \
	  echo "make: the native store needs a C++20 compiler; on Debian and Ubuntu: apt-get install g++" >&2; exit 1; }
	@echo "building the native store: a minute or two ..."
	@$(BIN)/cmake -S . -B build/native -G Ninja -DRDZV_INPLACE=ON -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -Dnanobind_DIR="$$($(BIN)/python -m nanobind --cmake_dir)" >/dev/null
	@MAKEFLAGS= $(BIN)/ninja -C build/native --quiet # make --jobs has a job server that it cannot use here
	@touch $@

demo: $(NATIVE)
	@$(BIN)/python examples/demo.py

# tests wait as much as they compute: six at a time leave two processors idle for a third of the first minutes
TESTERS ?= 8
# kept bytecode: else each of some thousand processes compiles our modules again
test test-all thorough test-torch: export PYTHONDONTWRITEBYTECODE =
PYTEST = $(BIN)/python tests/run.py -n $(TESTERS) --dist loadfile --no-loadscope-reorder --ignore=tests/native
test: $(NATIVE) $(NATIVE_TESTS) compiled-tests
	@tests/install.sh etcd
	@echo "the gate: the C++ tests, the fuzzer for 10 s, and all tests but the thorough ones, $(TESTERS) at a time ..."
	@build/sanitize-none/native/tests/rdzv_fuzz --seconds 10 --save build/fuzz & fuzzer=$$!; \
	  build/sanitize-none/native/tests/rdzv_tests --quiet; tests=$$?; \
	  wait $$fuzzer && exit $$tests
	@$(PYTEST) -m "not thorough" $(ARGS)

test-all: $(NATIVE) compiled-tests
	@tests/install.sh etcd redis logrotate slurm openmpi
	@echo "all tests, $(TESTERS) at a time: up to 40 minutes with two processors ..."
	@$(PYTEST) $(ARGS)
	@echo "the sanitizers ..."
	@$(MAKE) --no-print-directory sanitize
	@echo "a soak of three minutes ..."
	@$(BIN)/python tests/soak --minutes=3

# the thorough tests of some folders: CI, where the change asks for it
thorough: $(NATIVE) compiled-tests
	@tests/install.sh etcd redis
	@$(PYTEST) -m thorough $(THOROUGH)

# a fresh checkout: else each tester would compile all tests for itself, at the same time
.PHONY: compiled-tests
compiled-tests: $(NATIVE)
	@test -e tests/__pycache__ || $(BIN)/python -m pytest -n0 --collect-only -qq --ignore=tests/native >/dev/null

SEEDS ?= 2000
FIRST ?= 10000
# both processors share the seeds
soak-sim: $(STAMP)
	@half=$$(($(FIRST) + $(SEEDS) / 2)); \
	$(BIN)/python tests/simulation --seeds $(FIRST) $$half & one=$$!; \
	$(BIN)/python tests/simulation --seeds $$half $$(($(FIRST) + $(SEEDS))); two=$$?; \
	wait $$one && exit $$two

# a real Slurm and real mpiruns, alone; `test-all` has them, too
test-slurm: $(NATIVE)
	@tests/install.sh slurm openmpi
	@$(BIN)/python -m pytest -n 3 --dist loadfile tests/slurm $(ARGS)

# the same environment with another torch in front, a CUDA build without CUDA where there is no other
OTHER := build/torch-$(VERSION)
test-torch: $(NATIVE)
	@test -n "$(VERSION)" || { echo "make: which torch? make test-torch VERSION=2.15.0; it downloads what pip finds of" \
	  "that version for this Python, up to 600 MB, and takes 2 GB of disk in $(OTHER)VERSION" >&2; exit 2; }
	@test -e $(OTHER)/.installed || { $(BIN)/python tests/torch_without_cuda.py $(VERSION) $(OTHER) && \
	  touch $(OTHER)/.installed; }
	@$(OTHER)/bin/python -c "import sys, torch; sys.exit(torch.__version__.split('+')[0] != '$(VERSION)'.split('+')[0])"
	@echo "running the tests that touch torch with torch $(VERSION) ..."
	@$(OTHER)/bin/python -m pytest -n $(TESTERS) --dist loadfile @tests/with_torch.txt $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	@$(BIN)/python docs/generate.py --check
	@$(BIN)/python docs/performance.py --check || { echo "run: python docs/performance.py" >&2; exit 1; }
	@said=$$($(SITE) 2>&1) || { echo "$$said" >&2; exit 1; }

# a dead link or a page that is not in the menu is an error
SITE = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
docs: $(STAMP)
	@$(SITE)
	@echo "open build/site/index.html; for the search: $(BIN)/python -m http.server -d build/site"

sanitize: sanitize-address sanitize-thread

sanitize-address: $(STAMP)
	@native/tests/build.sh address rdzv_tests rdzv_fuzz
	@native/tests/run.sh build/sanitize-address/native/tests/rdzv_tests --quiet
	@$(BIN)/python -m pytest -n0 --noconftest -q tests/native

sanitize-thread: $(STAMP)
	@native/tests/build.sh thread rdzv_tests
	@native/tests/run.sh build/sanitize-thread/native/tests/rdzv_tests --quiet

FUZZ_SECONDS ?= 60
fuzz: $(STAMP)
	@native/tests/build.sh address rdzv_fuzz
	@native/tests/run.sh build/sanitize-address/native/tests/rdzv_fuzz --seconds $(FUZZ_SECONDS) --save build/fuzz

bench: $(NATIVE)
	@$(BIN)/python -m compileall -q src # as pip leaves an installed package
	@tests/install.sh etcd
	@$(BIN)/rdzv bench all --out=build/bench $(ARGS)

soak: $(NATIVE)
	@tests/install.sh etcd
	@$(BIN)/python tests/soak $(ARGS)

RELEASE := $(VENV)/.installed-release
$(RELEASE): release/requirements.txt $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r release/requirements.txt
	@touch $@

wheels: $(RELEASE)
	@$(BIN)/python release/wheels.py $(ARGS)

release: $(RELEASE)
	@$(BIN)/python release/prepare.py $(VERSION) $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .cache
	rm -f src/rdzv_plugins/kvstore/_native.*.so src/launcher/rdzv_launcher/bench/_load.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
