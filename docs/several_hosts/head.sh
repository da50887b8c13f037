#!/usr/bin/env bash
# The host that serves: rank 0, Triton, Ray's head. Started in the checkout:
#   HEAD_IP=10.0.0.1 OWN_IP=10.0.0.1 HOSTS=2 docs/several_hosts/head.sh
set -euo pipefail
source docs/several_hosts/common.sh

ray start --head --node-ip-address="$OWN_IP" --port="$RAY_PORT" --disable-usage-stats
trap 'ray stop' EXIT

alive() {
    .venv-vllm/bin/python -c 'import ray
ray.init("auto", log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))'
}
until hosts=$(alive) && [[ $hosts -ge ${HOSTS:-2} ]]; do
    echo "Waiting for ${HOSTS:-2} hosts: start docs/several_hosts/worker.sh on the others"
    sleep 5
done
make serve MODEL=tandem_hosts
