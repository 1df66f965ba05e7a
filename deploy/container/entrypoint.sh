#!/bin/sh
# The image's entry point: what follows `qpack-runtime serve`. Where flags come first, or nothing, /bundle is served.
set -eu
case ${1--} in
    -*) set -- /bundle "$@" ;;
esac
exec tini -- qpack-runtime serve --host 0.0.0.0 "$@"
