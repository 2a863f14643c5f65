#!/usr/bin/env bash
# Train under Slurm:  tools/slurm_train.sh PARTITION JOB_NAME CONFIG [arguments of train.py]
# Environment: GPUS (8) in all, GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS, PYTHON (python), PORT (29500).
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,3p' "$0" | cut -c3- >&2
    exit 2
fi
partition=$1
job=$2
config=$3
shift 3
gpus=${GPUS:-8}
gpus_per_node=${GPUS_PER_NODE:-8}
if [ "$gpus" -lt "$gpus_per_node" ]; then gpus_per_node=$gpus; fi
export MASTER_PORT=${MASTER_PORT:-${PORT:-29500}}
# SRUN_ARGS is a list of words on purpose.
# shellcheck disable=SC2086
exec srun -p "$partition" --job-name="$job" --gres="gpu:$gpus_per_node" --ntasks="$gpus" \
    --ntasks-per-node="$gpus_per_node" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$config" --launcher slurm "$@"
