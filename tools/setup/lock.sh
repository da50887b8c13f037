#!/usr/bin/env bash
# Writes requirements.lock anew: the newest versions that pyproject.toml allows, all of them pinned.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"${PYTHON:-.venv/bin/python}" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" --disable-pip-version-check install '.[client,dev]'
{
    echo "# Every package of the development environment. Written by: make lock"
    # A local version (+cpu) names one build of torch; any build of that version will do.
    "$scratch/venv/bin/pip" freeze --all --exclude pip --exclude tandem | sed 's/+[a-z0-9.]*$//'
} >requirements.lock
