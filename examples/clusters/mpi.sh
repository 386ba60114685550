#!/usr/bin/env bash
# A training under Open MPI 4, on two machines:
#
#     ./mpi.sh train.py --epochs 100
#
# One process on each of the machines in the file `hosts`, of which the first is this one: JAX looks
# for process 0 on the machine of mpirun. Other options of mpirun come from its own variables,
# OMPI_MCA_..., such as OMPI_MCA_rmaps_base_oversubscribe=1.
set -euo pipefail

hosts=()
if [ -f hosts ]; then hosts=(--hostfile hosts --map-by node); fi
exec mpirun "${hosts[@]}" -n "${PROCESSES:-2}" python "$@"
