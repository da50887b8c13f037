#!/usr/bin/env bash
# Makes .perf_analyzer with perf_analyzer, which `make profile` runs, or does nothing when it is up to
# date. The program is published inside a wheel of Triton's client, the last one that runs with glibc
# 2.35; two of its libraries come with the server.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/once.sh"

begin .perf_analyzer perf_analyzer
mkdir -p "$folder/lib"
.venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps \
    --target "$folder/wheel" tritonclient==2.50.0
mv "$folder/wheel/bin/perf_analyzer" "$folder/program"
rm -rf "$folder/wheel"
# Their names were changed when the server's wheel was packed. A server that was installed otherwise
# brings them itself.
for library in libb64.so.0d libcudart.so.12; do
    for packed in .triton/lib/"${library%%.*}"-*.so."${library#*.so.}"*; do
        [[ -e $packed ]] && ln -s "$(realpath "$packed")" "$folder/lib/$library"
    done
done
# An output that a response lacks is exported as whatever is in memory, and where that is no number
# the export stays empty (seen in one run of ten): with these settings of malloc it always is one.
cat >"$folder/perf_analyzer" <<'SCRIPT'
#!/usr/bin/env bash
export GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0:glibc.malloc.perturb=1
folder=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
LD_LIBRARY_PATH=$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$folder/program" "$@"
SCRIPT
chmod +x "$folder/program" "$folder/perf_analyzer"
if ! said=$("$folder/perf_analyzer" --version 2>&1); then
    echo "perf_analyzer does not start here: $said" >&2
    exit 1
fi
finish
