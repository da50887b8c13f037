#!/usr/bin/env bash
# Makes .venv-openvino, an environment with OpenVINO GenAI for the benchmarks, or does nothing when
# it is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

exec 9<tools/setup/openvino.sh
flock 9

venv=.venv-openvino
stamp=$venv/.setup-stamp
wanted=$({ pwd -P; cat tools/setup/openvino.sh; } | sha256sum)
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

echo "Installing OpenVINO GenAI into $venv (a few minutes)" >&2
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
# openvino and its tokenizers must be of the same patch release.
"${pip[@]}" install torch==2.13.0 openvino==2026.4.0 openvino-genai==2026.4.0 \
    optimum-intel==2.2.0 | sed '/already satisfied/d'
# A CUDA build that comes along even on a CPU, where it breaks the import of transformers.
"${pip[@]}" uninstall --quiet --yes torchvision
echo "$wanted" >"$stamp"
