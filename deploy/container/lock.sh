#!/bin/sh
# Writes the locks again, with the newest versions that pyproject.toml allows: `pip install uv`, then this. Each has the
# digests of every file of a version, so that one lock does for x86-64 and aarch64.
set -eu
cd "$(dirname "$0")"

lock() {
    name=$1
    shift
    uv pip compile --quiet --no-config --upgrade --generate-hashes --no-annotate \
        --custom-compile-command deploy/container/lock.sh \
        --python-version 3.11 --python-platform x86_64-manylinux_2_36 --overrides overrides.txt \
        --output-file "$name.lock" "$@"
}

lock runtime --extra runtime --extra cuda ../../pyproject.toml
lock packager --extra packager --extra kernels ../../pyproject.toml
printf 'hatchling\nclick\n' | lock build -
