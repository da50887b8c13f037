#!/usr/bin/env bash
# Makes .venv (packages of requirements.lock, this project editable) and .triton (the server), or
# does nothing when both are up to date. Bash, because it runs before any environment exists.
# TRITON=/path/to/tritonserver: a server that is there already, in the place of .triton.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

exec 9<tools/setup/setup.sh
flock 9 # two runs at once must not write the same .venv

venv=.venv
stamp=$venv/.setup-stamp
unfinished=$venv/.setup-unfinished

say() { if [[ -t 2 ]]; then printf '\033[1m%s\033[0m\n' "$*"; else echo "$*"; fi >&2; }

# pip, of whose many lines one is shown that changes (not on a terminal: each tenth); errors stay.
pip_install() {
    local live=
    if [[ -t 1 ]]; then live=1; fi
    "$venv/bin/python" -m pip --disable-pip-version-check install "$@" |
        awk -v most="$(grep -c == requirements.lock)" -v live="$live" '
            /^(Collecting|Processing) / {
                name = $2; sub(".*/", "", name); sub("[-=<>][-=<>0-9].*", "", name)
                if (seen[name]++ || count == most) next
                count++
                if (live) printf "\r\033[K  %d of %d: %s", count, most, name
                else if (count % 10 == 0) printf "  %d of %d\n", count, most
                fflush()
            }
            /^Installing collected/ { printf "%s  unpacking\n", live ? "\r\033[K" : ""; fflush() }'
}

# The folder's own path belongs to it: an environment that was moved or copied does not work.
inputs() { { pwd -P; cat requirements.lock pyproject.toml tools/setup/*.{sh,py}; } | sha256sum; }

# Prints the first interpreter that can carry the server's Python backend.
find_python() {
    local candidate reason reasons=""
    for candidate in ${PYTHON:-python3.11 python3.12 python3}; do
        command -v "$candidate" >/dev/null || continue
        if reason=$("$candidate" tools/setup/interpreter.py 2>&1 >/dev/null); then
            echo "$candidate"
            return
        fi
        reasons+=" $reason"
    done
    say "No Python 3.11 or 3.12 with a shared library found; install one or name it with" \
        "make setup PYTHON=/path/to/python3.11.$reasons"
    return 1
}

# An interrupted installation may have left packages without all their files: begin anew.
usable() {
    [[ ! -e $unfinished ]] && "$venv/bin/python" tools/setup/interpreter.py >/dev/null 2>&1 &&
        "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

wanted=$(inputs)
server=${TRITON:-.triton/bin/tritonserver}
if [[ -f $stamp && $(<"$stamp") == "$wanted" && -x $server ]]; then
    exit 0
fi

if ! usable; then
    python=$(find_python)
    say "Making $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

say "Installing the packages of requirements.lock (torch is large: some minutes the first time)"
rm -f "$stamp"
touch "$unfinished"
pip_install -r requirements.lock
pip_install --quiet --no-deps --no-build-isolation --editable .
rm -f "$unfinished"

if [[ -z ${TRITON:-} ]]; then
    "$venv/bin/python" tools/setup/install_triton.py .triton
elif [[ ! -x $TRITON ]]; then
    say "TRITON names $TRITON, which is no program: name tritonserver, or leave TRITON out"
    exit 1
fi
echo "$wanted" >"$stamp"
say "Ready: try make demo, make serve or make test"
