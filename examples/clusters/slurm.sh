#!/usr/bin/env bash
# A training under Slurm that comes back after it was preempted, ran out of time or failed, and
# continues from its newest checkpoint:
#
#     sbatch slurm.sh train.py --epochs 100
#
# One process on each machine. train.py calls millrace.distributed.initialize(), saves on SIGTERM,
# leaves with exit status 143, and keeps its checkpoints where all machines see them.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --output=train-%j.log
# The output of each run continues the file.
#SBATCH --open-mode=append
# Slurm itself starts the job again after it has preempted it, or has lost a machine.
#SBATCH --requeue
# SIGTERM to the processes, not to this script, 120 seconds before the time is over.
#SBATCH --signal=TERM@120

# A failure in this run, or a later one, ends the job. A run that SIGTERM has ended, and that has
# saved, always comes back.
max_runs=10

# Without --kill-on-bad-exit, Slurm leaves it to millrace to end all processes after a failure.
srun --kill-on-bad-exit=0 python "$@"
status=$?

run=$((${SLURM_RESTART_COUNT:-0} + 1))
if ((status == 143)) || ((status != 0 && run < max_runs)); then
  echo "Run $run ended with exit status $status. The job goes back into the queue."
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
