#!/usr/bin/env bash
# Every other host. Started in the checkout, ended by Ctrl-C:
#   HEAD_IP=10.0.0.1 OWN_IP=10.0.0.2 docs/several_hosts/worker.sh
set -euo pipefail
source docs/several_hosts/common.sh

exec ray start --address="$RAY_ADDRESS" --node-ip-address="$OWN_IP" --disable-usage-stats --block
