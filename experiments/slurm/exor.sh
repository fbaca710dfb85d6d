#!/usr/bin/env bash
# EXor on two nodes with four GPUs each, one process per GPU: sbatch experiments/slurm/exor.sh [OPTION ...]
# Two minutes before its time ends, every process is told to write a checkpoint; the job then waits in the queue again and resumes.
#SBATCH --job-name=exor
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"

OUT=runs/exor_slurm
STOPPED=130  # the status of a run that wrote a checkpoint and ended before it was done

resume=()
if [ -e "$OUT/run.json" ]; then
    resume=(--resume)
fi
srun .venv/bin/python experiments/exor.py --seeds 256 --distributed --out "$OUT" "${resume[@]}" "$@"
status=$?
if [ "$status" -eq "$STOPPED" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
