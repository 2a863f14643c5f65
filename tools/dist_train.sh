#!/usr/bin/env bash
# Train with several processes on one or more machines:  tools/dist_train.sh CONFIG PROCESSES [arguments of train.py]
# One process for each GPU; without a GPU the processes share the CPU (gloo).
# Several machines: the same command on each, with NNODES, NODE_RANK, MASTER_ADDR and the same PORT in the environment.
set -euo pipefail
if [ $# -lt 2 ]; then
    sed -n '2,4p' "$0" | cut -c3- >&2
    exit 2
fi
config=$1
processes=$2
shift 2
exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    --nproc_per_node="$processes" \
    "$(dirname "$0")/train.py" "$config" --launcher pytorch "$@"
