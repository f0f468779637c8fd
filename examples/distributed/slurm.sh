#!/bin/bash
# Trains on several machines of a Slurm cluster:
#     sbatch --nodes 4 examples/distributed/slurm.sh mlm --train_file text.txt --output_dir model
# All machines must see the current directory. A worker that dies is started again with all others, and a job that is
# put back into the queue goes on from the last checkpoint.
#SBATCH --job-name=roformer-lite
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --requeue
set -euo pipefail

first_machine=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
processes=${PROCESSES_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / processes))
# Otherwise torch reads addresses of the processes that have died from the store that it shares with them.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_JOB_NUM_NODES" \
    --nproc_per_node "$processes" \
    --max-restarts 3 \
    --rdzv-backend c10d \
    --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-endpoint "$first_machine:${RENDEZVOUS_PORT:-29500}" \
    -m roformer_lite.cli train "$@"
