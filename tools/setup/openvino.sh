#!/usr/bin/env bash
# Makes .venv-openvino, an environment with OpenVINO GenAI for the benchmarks, or does nothing when
# it is up to date.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/once.sh"

begin .venv-openvino "OpenVINO GenAI"
make_venv
# openvino and its tokenizers must be of the same patch release.
pip install torch==2.13.0 openvino==2026.4.0 openvino-genai==2026.4.0 optimum-intel==2.2.0
# A CUDA build that comes along even on a CPU, where it breaks the import of transformers.
pip uninstall --quiet --yes torchvision
finish
