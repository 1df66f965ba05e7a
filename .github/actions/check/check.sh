#!/usr/bin/env bash
# Runs `qpack check`, or that of QPACK, with the flags given and those of the inputs: PATHS, STRICT, ENCODINGS.
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
files=()
while IFS= read -r path; do
  [ -z "$path" ] || files+=("$path")
done <<<"$PATHS"
exec "${QPACK:-$RUNNER_TEMP/qpack-check/bin/qpack}" check "${flags[@]}" -- "${files[@]}"
