#!/usr/bin/env bash
# Tries an install of qpack as its users have it: `scripts/try_install.sh .`, or a wheel instead of the checkout. One new
# environment gets [packager] and builds a bundle, another gets [runtime], boots it and decodes.
set -euo pipefail
cd "$(dirname "$0")/.."

source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for extra in packager runtime; do
  "${PYTHON:-python3}" -m venv "$work/$extra"
  QPACK_REQUIRE_CPU=1 "$work/$extra/bin/pip" install --quiet --disable-pip-version-check "${source}[$extra]"
done

# Outside the checkout, so that what is imported is what was installed.
model=$PWD/tests/assets/tiny-qwen3_5
cd "$work"
packager/bin/qpack build "$model" -o bundle --progress plain >/dev/null
packager/bin/qpack validate bundle
runtime/bin/qpack-runtime generate bundle --prompt "And the LORD said unto" --max-tokens 16 --format json >answer.json
runtime/bin/python - <<'EOF'
import importlib.util
import json

with open("answer.json", encoding="utf-8") as file:
    answer = json.load(file)
assert len(answer["output_ids"]) == 16, answer
brought = [name for name in ("torch", "transformers", "triton", "rich") if importlib.util.find_spec(name)]
assert not brought, f"[runtime] brings {brought}"
print("decoded 16 tokens:", answer["text"])
EOF
