# The only commands a newcomer needs. Each sets up what it needs; a second run is quick.
#   make demo    train a real network on two nodes, kill a worker, see it resume
#   make test    all tests (make test ARGS="-k static" for some)
#   make lint    formatting, types, layers
#   make bench   the benchmarks, each beside torchrun in the same run
#   make clean   remove what the others made
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench clean setup
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "make: '$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing into $(VENV) (the first time takes a minute or two) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  "$$(grep '^torch==' constraints.txt)" -e '.[dev,examples]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

test: $(STAMP)
	@$(BIN)/python -m pytest $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

bench: $(STAMP)
	@$(BIN)/python -m compileall -q src  # as pip leaves an installed package
	@$(BIN)/rdzv bench launch

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
