#!/usr/bin/env bash
# Makes .venv-profile with genai-perf and aiperf, or does nothing when it is up to date. They need a
# newer NumPy than the server's Python backend takes, so they cannot share .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

exec 9<tools/setup/load_tools.sh
flock 9

venv=.venv-profile
stamp=$venv/.setup-stamp
wanted=$({ pwd -P; cat tools/setup/load_tools.sh; } | sha256sum)
[[ -f $stamp && $(<"$stamp") == "$wanted" ]] && exit 0

echo "Installing genai-perf and aiperf into $venv (a few minutes)" >&2
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check install genai-perf==0.0.16 aiperf==0.13.0 |
    sed '/already satisfied/d'
echo "$wanted" >"$stamp"
