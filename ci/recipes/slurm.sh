#!/bin/bash
#SBATCH --job-name=verify
#SBATCH --array=1-4
#SBATCH --gpus=1
#SBATCH --requeue
# sbatch ci/recipes/slurm.sh, with harness on the PATH; afterwards
# reports merge verify/*.jsonl --out results.jsonl
# A task that is requeued goes on where it stopped: that is the journal.
#
# A large model: RECORDING=/shared/llama3-8b sbatch --array=1-8 ci/recipes/slurm.sh
# A task has whole layers of it, and reads no more than these; where RECORDING is an address
# (https://...), it fetches no more, which needs .[sweep] and a server that takes range requests.
set -euo pipefail
results=$(realpath -m "${RESULTS:-verify}")
task=$SLURM_ARRAY_TASK_ID
shard=$task/$SLURM_ARRAY_TASK_COUNT
mkdir -p "$results"
what=(--shard "$shard")
if [[ ${RECORDING:-} == *://* ]]; then
  mkdir -p "$results/$task"
  cd "$results/$task" # where the recording is fetched to has the same name in all tasks
  reports fetch "$RECORDING" --shard "$shard" --out recording
  RECORDING=recording
  if [[ -d recording/.weights ]]; then what+=(--weights recording/.weights); fi
fi
if [[ -n ${RECORDING:-} ]]; then what+=(--shard-by layers --fixture "$RECORDING"); fi
exec harness --device auto "${what[@]}" \
  --journal "$results/$task.journal" --json "$results/$task.jsonl"
