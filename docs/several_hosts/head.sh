#!/usr/bin/env bash
# The host that serves: rank 0, Triton, Ray's head. Started in the checkout:
#   HEAD_IP=10.0.0.1 OWN_IP=10.0.0.1 HOSTS=2 docs/several_hosts/head.sh
set -euo pipefail
source docs/several_hosts/common.sh

ray start --head --node-ip-address="$OWN_IP" --port="$RAY_PORT" --disable-usage-stats
trap 'ray stop' EXIT

until [[ $(ray list nodes --filter state=ALIVE --format json | grep -c '"node_ip"') -ge ${HOSTS:-2} ]]; do
    echo "Waiting for ${HOSTS:-2} hosts: start docs/several_hosts/worker.sh on the others"
    sleep 5
done
make serve MODEL=tandem_hosts
