# Two images of one file:
#   docker build -t ocr-gateway:0.5.0 .                               the gateway alone
#   docker build -t ocr-gateway:0.5.0-embedded --target embedded .    with the CPU engine, and what `sweep` needs
# Where packages come from a mirror: --secret id=pip.conf,src=FILE, and --secret id=ca.crt,src=FILE for
# `cert = /run/secrets/ca.crt` in it. Neither ends up in a layer.

# Python 3.11 is what the tests run on. To move on: `docker buildx imagetools inspect python:3.11-slim-bookworm` prints
# the digest of the index, for every architecture. Any base with python3 and its venv does: --build-arg BASE=...
ARG BASE=python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

FROM ${BASE} AS build
ENV PIP_CACHE_DIR=/var/cache/pip
WORKDIR /build
COPY deploy/image/build.lock ./
# What ships is an environment without pip: this one's pip fills it.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    --mount=type=cache,target=/var/cache/pip \
    python3 -m venv /opt/build \
 && /opt/build/bin/pip install --only-binary=:all: --require-hashes -r build.lock \
 && python3 -m venv --without-pip /opt/ocr-gateway

FROM build AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
RUN /opt/build/bin/hatchling build -t wheel -d /wheel

# Compiled once, here, and trusted as it is: on a read-only root nothing could be compiled later, nor has changed.
FROM build AS gateway-environment
COPY deploy/image/gateway.lock ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    --mount=type=cache,target=/var/cache/pip \
    /opt/build/bin/pip --python /opt/ocr-gateway/bin/python install --no-compile \
      --only-binary=:all: --require-hashes -r gateway.lock \
 && find /opt/ocr-gateway -type d -name tests -prune -exec rm -r {} + \
 && /opt/ocr-gateway/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/ocr-gateway
COPY --from=wheel /wheel /wheel
RUN /opt/build/bin/pip --python /opt/ocr-gateway/bin/python install --no-compile --no-index --no-deps /wheel/*.whl \
 && /opt/ocr-gateway/bin/python -m compileall -q --invalidation-mode unchecked-hash \
      /opt/ocr-gateway/lib/python3.*/site-packages/gateway

FROM gateway-environment AS embedded-environment
COPY deploy/image/embedded.lock ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.crt \
    --mount=type=cache,target=/var/cache/pip \
    /opt/build/bin/pip --python /opt/ocr-gateway/bin/python install --no-compile \
      --only-binary=:all: --require-hashes -r embedded.lock \
 && find /opt/ocr-gateway -type d -name tests -prune -exec rm -r {} + \
 && /opt/ocr-gateway/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/ocr-gateway

FROM ${BASE} AS runtime
# The base's own pip, setuptools and the wheels that `venv` would install: nothing here installs packages.
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3.*/site-packages/* \
      /usr/local/lib/python3.*/ensurepip /usr/lib/python3.*/ensurepip /usr/share/python-wheels
ENV PATH=/opt/ocr-gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
# Mount routes.yaml and its profiles here. Serving writes nothing at all; `sweep` wants a /tmp.
WORKDIR /etc/ocr-gateway
USER 65532:65532
EXPOSE 8000
# By hand, not urlopen: that would ask a configured proxy.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-ISc", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=2); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["ocr-gateway"]
CMD ["serve", "--host=0.0.0.0", "--config=/etc/ocr-gateway/routes.yaml"]
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="ocr-gateway" \
      org.opencontainers.image.description="An OpenAI-compatible gateway for document OCR: sorts requests into routes in front of vLLM engines" \
      org.opencontainers.image.version="0.5.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.revision="${REVISION}"

FROM runtime AS embedded
COPY routes.yaml ./
COPY --from=embedded-environment /opt/ocr-gateway /opt/ocr-gateway

FROM runtime AS gateway
COPY --from=gateway-environment /opt/ocr-gateway /opt/ocr-gateway
