# Sourced by head.sh and worker.sh: the same on every host.
# Every host needs this checkout at the same path, and the checkpoints at the paths that
# config.pbtxt names (a shared folder, or copies).
export HEAD_IP=${HEAD_IP:?"set HEAD_IP to the address of the host that runs head.sh"}
export OWN_IP=${OWN_IP:?"set OWN_IP to this host's address in the network that joins the GPUs"}
export RAY_PORT=${RAY_PORT:-6379}

# vLLM's environment with Ray in it; the package's plug-ins load in every worker by themselves.
make setup-vllm
.venv-vllm/bin/python -m pip --disable-pip-version-check install --quiet 'ray[cgraph]==2.56.0'

export PATH=$PWD/.venv-vllm/bin:$PATH
export VLLM_HOST_IP=$OWN_IP
export RAY_ADDRESS=$HEAD_IP:$RAY_PORT
