#!/usr/bin/env bash
# Runs `qpack build` as the action's inputs ask for: MODEL, OUTPUT, RECIPE, TARGETS, EVAL, MAX_PPL_RATIO, MAX_KL,
# ENCODINGS, ARGUMENTS. What it says as JSON is left for the summary.
set -euo pipefail

flags=(--output "$OUTPUT" --kernel-cache "$RUNNER_TEMP/qpack-kernels" --progress plain --format json)
given() { # given FLAG VALUE: nothing is not given
  [ -z "$2" ] || flags+=("$1" "$2")
}
given --recipe "$RECIPE"
given --eval "$EVAL"
given --max-ppl-ratio "$MAX_PPL_RATIO"
given --max-kl "$MAX_KL"
while IFS= read -r target; do given --target "$target"; done <<<"$TARGETS"
while IFS= read -r encoding; do given --encoding "$encoding"; done <<<"$ENCODINGS"
while IFS= read -r argument; do [ -z "$argument" ] || flags+=("$argument"); done <<<"$ARGUMENTS"
exec "$RUNNER_TEMP/qpack-build/bin/qpack" build "${flags[@]}" -- "$MODEL" >"$RUNNER_TEMP/qpack-build.json"
