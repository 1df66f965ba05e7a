# Everything runs in .venv, which each target makes and brings up to date as far as it needs.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test nightly check lint format types imports fix clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name what; do printf '%-10s%s\n' "$$name" "$$what"; done

demo: .venv/demo ## build a bundle of a tiny trained Qwen3.5, validate it, boot it and decode a prompt
	rm -rf build/demo
	$(BIN)/qpack build tests/assets/tiny-qwen3_5 -o build/demo
	$(BIN)/qpack validate build/demo
	$(BIN)/qpack-runtime generate build/demo --prompt "And the LORD said unto" --max-tokens 48

# Two workers, and one thread in each: more only makes them fight for the cores.
test nightly: export OMP_NUM_THREADS = 1

test: .venv/dev ## run the tests, without those that need minutes
	$(BIN)/pytest -n 2 -m "not nightly"

nightly: .venv/dev ## run all tests, on fresh random examples
	$(BIN)/pytest -n 2 --hypothesis-profile=nightly

check: lint format types imports ## all of lint, format, types and imports

lint: .venv/dev ## ruff's rules
	$(BIN)/ruff check

format: .venv/dev ## ruff's format
	$(BIN)/ruff format --check

types: .venv/dev ## pyright: strict in schemas/, basic elsewhere
	$(BIN)/pyright

imports: .venv/dev ## who may import whom
	$(BIN)/lint-imports --no-logo

fix: .venv/dev ## let ruff repair what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove all that make made
	rm -rf .venv build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamps below are newer than pyproject.toml exactly when its dependencies are installed.
.venv/demo: EXTRAS = packager,runtime
.venv/dev: EXTRAS = dev
.venv/demo .venv/dev: pyproject.toml .venv/made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'qpack needs Python 3.11 or newer, which $(PYTHON) is not: name one, as in `make test PYTHON=python3.12`' >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	@touch $@
