# Sourced by the scripts that make a folder of their own beside .venv, each of which does nothing when
# its folder is up to date. Behind it, the working directory is the repository's root.
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
script=tools/setup/${0##*/}

# begin FOLDER WHAT [STATE]: removes the folder, or ends the script where the same script has made it
# in the same place of the same WHAT and STATE.
begin() {
    folder=$1
    exec 9<"$script"
    flock 9 # two runs at once must not write the same folder
    wanted=$({ pwd -P; echo "$*"; cat "$script" tools/setup/once.sh; } | sha256sum)
    if [[ -f $folder/.setup-stamp && $(<"$folder/.setup-stamp") == "$wanted" ]]; then exit 0; fi
    echo "Installing $2 into $folder (up to some minutes)" >&2
    rm -rf "$folder"
}

# Makes the folder an environment.
make_venv() { .venv/bin/python -m venv "$folder"; }

# pip of that environment, without its list of things already there.
pip() { "$folder/bin/python" -m pip --disable-pip-version-check "$@" | sed '/already satisfied/d'; }

# The folder is complete.
finish() { echo "$wanted" >"$folder/.setup-stamp"; }
