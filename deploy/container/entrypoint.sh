#!/bin/sh
# The image's entry point: what follows `qpack-runtime serve`. Where flags come first, or nothing, /bundle is served.
set -eu
case ${1--} in
    -*) set -- /bundle "$@" ;;
esac
# Who hands a GPU to the container, as --gpus does, wants it used; there is no going on without it. Its files are those of
# a card, of a Jetson, or of Windows.
case " $* " in
    *" --device"*) ;;
    *)
        for file in /dev/nvidiactl /dev/nvmap /dev/dxg; do
            if [ -e "$file" ]; then
                set -- "$@" --device cuda
                break
            fi
        done
        ;;
esac
exec tini -- qpack-runtime serve --host 0.0.0.0 "$@"
