#!/usr/bin/env bash
# Runs `qpack check` with the flags given and those that the action's inputs ask for: PATHS, STRICT, ENCODINGS.
set -euo pipefail

flags=("$@")
case "$STRICT" in
  true) flags+=(--strict) ;;
  false) ;;
  *) echo "error: strict is '$STRICT', but must be true or false" >&2; exit 2 ;;
esac
while IFS= read -r encoding; do
  [ -z "$encoding" ] || flags+=(--encoding "$encoding")
done <<<"$ENCODINGS"
paths=()
while IFS= read -r path; do
  [ -z "$path" ] || paths+=("$path")
done <<<"$PATHS"
exec "$RUNNER_TEMP/qpack-check/bin/qpack" check "${flags[@]}" -- "${paths[@]}"
