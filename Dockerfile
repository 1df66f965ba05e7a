# `docker build .` makes the image that serves bundles, `docker build --target packager .` the one that CI builds them in.
# docs/containers.md tells how to run both; scripts/check_image.py builds and checks them without a daemon.

# The index of x86-64 and aarch64, as github.com/docker-library/repo-info has it in repos/debian/remote.
ARG BASE=debian:bookworm-20260918-slim@sha256:3783cc01769c7b2b1b83a5c5ad96c815348e28ed7da68e2e3687004faa906251

FROM ${BASE} AS tools
# No versions, here and below: Debian takes one away when its security update comes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY deploy/container/build.lock ./
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r build.lock \
    && python3 -m venv --without-pip /opt/qpack
ENV PIP_NO_CACHE_DIR=1 PIP_NO_DEPS=1

FROM tools AS wheel
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY scripts/build_cpu.py scripts/make_man.py scripts/
COPY schemas schemas
COPY delivery delivery
COPY packager packager
COPY runtime runtime
RUN QPACK_REQUIRE_CPU=1 /opt/build/bin/pip wheel --no-build-isolation --wheel-dir /wheels .

# What only tests and compilers read is left out. Modules are compiled now, since nobody may write later, and without
# times, so that the same build gives the same bytes.
FROM tools AS runtime-environment
COPY deploy/container/runtime.lock ./
RUN /opt/build/bin/pip --python /opt/qpack/bin/python install --no-compile --require-hashes -r runtime.lock
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/qpack/bin/python install --no-compile --no-index /wheels/*.whl \
    && find /opt/qpack -type d \( -name tests -o -name include \) -prune -exec rm -r {} + \
    && find /opt/qpack -type f \( -name '*.pyi' -o -name '*.pxd' -o -name '*.a' \) -delete \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/qpack/lib

FROM tools AS packager-environment
COPY deploy/container/packager.lock ./
RUN /opt/build/bin/pip --python /opt/qpack/bin/python install --no-compile --require-hashes -r packager.lock
COPY --from=wheel /wheels /wheels
RUN /opt/build/bin/pip --python /opt/qpack/bin/python install --no-compile --no-index /wheels/*.whl \
    && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/qpack/lib

# For CI systems, which start a shell in it as a user of their choice.
FROM ${BASE} AS packager
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates git python3 \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/*
COPY --from=packager-environment /opt/qpack /opt/qpack
ENV PATH=/opt/qpack/bin:$PATH LANG=C.UTF-8
CMD ["qpack", "--help"]

# Last, and so what is built when no target is named.
FROM ${BASE} AS runtime
# tini is process 1, which no signal ends that it doesn't handle: Python handles none while it starts.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/* \
    && mkdir /bundle
COPY deploy/container/entrypoint.sh deploy/container/healthcheck.py /opt/
COPY --from=runtime-environment /opt/qpack /opt/qpack
# The capabilities are what NVIDIA's container toolkit is to bring along: libcuda and NVML.
ENV PATH=/opt/qpack/bin:$PATH LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m --retries=3 \
    CMD ["python3", "-IS", "/opt/healthcheck.py", "http://127.0.0.1:8000/readyz"]
ENTRYPOINT ["/opt/entrypoint.sh"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="qpack-runtime" \
    org.opencontainers.image.description="Serves a qpack bundle over OpenAI's API" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
