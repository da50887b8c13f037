#!/usr/bin/env bash
# Makes .venv-profile with genai-perf and aiperf, or does nothing when it is up to date. They need a
# newer NumPy than the server's Python backend takes, so they cannot share .venv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/once.sh"

begin .venv-profile "genai-perf and aiperf" "$(<tools/setup/load_tools.lock)"
make_venv
pip install --requirement tools/setup/load_tools.lock
finish
