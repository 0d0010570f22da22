#!/bin/bash
#SBATCH --job-name=verify
#SBATCH --array=1-4
#SBATCH --gpus=1
#SBATCH --requeue
# sbatch ci/recipes/slurm.sh, with harness on the PATH; afterwards
# python -m reports merge verify/*.jsonl --out results.jsonl
# A task that is requeued goes on where it stopped: that is the journal.
set -euo pipefail
results=${RESULTS:-verify}
mkdir -p "$results"
exec harness --device auto --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
  --journal "$results/$SLURM_ARRAY_TASK_ID.journal" \
  --json "$results/$SLURM_ARRAY_TASK_ID.jsonl"
