#!/usr/bin/env bash
# Signs BUNDLE with KEY as VERSION, holds it against PUBLIC_KEY, and pushes it to REFERENCE. Key and password are in files
# that only this user can read, and only while this runs.
set -euo pipefail

bin="$RUNNER_TEMP/qpack-publish/bin"
REFERENCE=${REFERENCE#oci://}
umask 077
private=$(mktemp -d "$RUNNER_TEMP/qpack-private.XXXXXX")
trap 'rm -rf "$private"' EXIT

if [ -n "$KEY" ]; then
  printf '%s\n' "$KEY" >"$private/key.pem"
  flags=(--key "$private/key.pem")
  [ -z "$VERSION" ] || flags+=(--version "$VERSION")
  "$bin/qpack" sign "$BUNDLE" "${flags[@]}"
fi
if [ -n "$PUBLIC_KEY" ]; then
  "$bin/qpack" verify "$BUNDLE" --pubkey "$PUBLIC_KEY"
fi

if [ -n "$REGISTRY_PASSWORD" ]; then
  export DOCKER_CONFIG="$private"
  "$bin/python" - "${REFERENCE%%/*}" >"$private/config.json" <<'EOF'
import base64, json, os, sys
pair = f"{os.environ['REGISTRY_USERNAME']}:{os.environ['REGISTRY_PASSWORD']}".encode()
print(json.dumps({"auths": {sys.argv[1]: {"auth": base64.b64encode(pair).decode()}}}))
EOF
fi
"$bin/qpack" push "$REFERENCE" "$BUNDLE" --progress plain --format json >"$private/pushed.json"
"$bin/python" - "$private/pushed.json" "$GITHUB_OUTPUT" "$GITHUB_STEP_SUMMARY" <<'EOF'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    pushed = json.load(file)
with open(sys.argv[2], "a", encoding="utf-8") as outputs:
    print(f"digest={pushed['digest']}\nreference={pushed['reference']}", file=outputs)
with open(sys.argv[3], "a", encoding="utf-8") as summary:
    print(f"## qpack publish\n\n`{pushed['reference']}`", file=summary)
EOF
