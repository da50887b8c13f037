# Tandem on NVIDIA's Triton image, for GPUs:
#   docker build -f docker/gpu.Dockerfile --build-arg TRITON_IMAGE=… -t tandem:gpu .
# With vLLM in an environment of its own beside it: add --target vllm.
# TRITON_IMAGE: tritonserver:26.09-py3, with the name of the registry that has it.
ARG TRITON_IMAGE=tritonserver:26.09-py3
# hadolint ignore=DL3006
FROM ${TRITON_IMAGE} AS packages

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# No versions: Ubuntu keeps only the newest of each package of a release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends curl g++ python3-venv python3-dev \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner 1000 /opt/tandem /opt/home

# Its user triton-server may have no folder of its own, where Triton's and vLLM's compilers keep
# what they made.
ENV HOME=/opt/home
ENV PIP_NO_CACHE_DIR=1
USER 1000
WORKDIR /opt/tandem
# Packages lie below the code, so that a change of it alone leaves their layers as they are: what is
# installed of the project is the way to its folders. Of the lock, only what serving needs.
COPY --chown=1000 pyproject.toml requirements.lock ./
COPY --chown=1000 tools/setup tools/setup
# The image has a server: ours is not fetched.
RUN test -x /opt/tritonserver/bin/tritonserver \
    && python3 tools/setup/interpreter.py \
    && python3 -m venv .venv \
    && .venv/bin/python -m pip install --constraint requirements.lock --editable '.[client]'

# HTTP, gRPC, metrics
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s \
    CMD ["docker/probe.sh", "ready"]
STOPSIGNAL SIGINT
# Within the container alone Triton's own HTTP listens on 8003, to load and unload models.
ENTRYPOINT [".venv/bin/tandem", "serve", "--host", "0.0.0.0", "--control-port", "8003"]

FROM packages AS vllm
RUN VLLM=vllm tools/setup/vllm.sh
COPY --chown=1000 . .
CMD ["--model", "tandem_vllm"]

# What is built where no target is named.
FROM packages AS tandem
COPY --chown=1000 . .
CMD ["--model", "tandem"]
