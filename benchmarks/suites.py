"""The runs of the tables in the README. `python -m benchmarks suite --device cpu|cuda --out DIR`
runs them all."""

CPU = """
encoder --size small --batch 16 --seq 256 --lengths real --batches 1
encoder --size small --batch 8 --seq 128 --lengths full
encoder --size mini --batch 16 --seq 128 --lengths full
encoder --size mini --batch 16 --seq 128 --lengths sorted
encoder --size tiny --batch 16 --seq 128 --lengths real
encoder --size tiny --batch 16 --seq 128 --lengths full
mlm --size mini --batch 16 --seq 128 --lengths real --batches 2
mlm --size mini --batch 16 --seq 128 --lengths full
mlm --size mini --batch 16 --seq 128 --lengths sorted --batches 2
mlm --size tiny --batch 16 --seq 128 --lengths real
mlm --size tiny --batch 16 --seq 128 --lengths full
causal --size mini --batch 16 --seq 128 --lengths real --batches 2
seq2seq --size mini --batch 32 --seq 96 --lengths real --batches 1
seq2seq --size mini --batch 16 --seq 64 --lengths full
seq2seq --size tiny --batch 16 --seq 64 --lengths full
seq2seq --size mini --batch 16 --seq 64 --lengths sorted --batches 2
mlm --size mini --batch 16 --seq 128 --lengths real --batches 1 --rounds 3 --vocab_size 30522
mlm --size mini --batch 16 --seq 128 --lengths full --rounds 3 --vocab_size 30522
seq2seq --size mini --batch 32 --seq 96 --lengths real --batches 1 --rounds 3 --vocab_size 30522
seq2seq --size mini --batch 16 --seq 64 --lengths full --rounds 3 --vocab_size 30522
generate --size mini --batch 8 --seq 64
generate --size tiny --batch 8 --seq 64
local-layers --size small --batch 1 --seq 8192 --lengths full --rounds 3
roformer-weights --size small --batch 1 --seq 4096 --lengths full --rounds 3
memory-of-roformer-weights --size small --batch 1 --seq 4096 --lengths full
memory-of-roformer-weights --size small --batch 1 --seq 16384 --lengths full --only ours
deeplotx --batch 4 --seq 64 --lengths full
deeplotx --batch 4 --seq 64 --lengths real
deeplotx-step --batch 4 --seq 64 --lengths full
deeplotx-step --batch 4 --seq 64 --lengths real
encoder --size small --batch 8 --seq 128 --lengths full --dtype bfloat16
encoder --size small --batch 16 --seq 256 --lengths real --batches 1 --dtype bfloat16
mlm --size mini --batch 16 --seq 128 --lengths full --dtype bfloat16
mlm --size mini --batch 16 --seq 128 --lengths real --batches 2 --dtype bfloat16
seq2seq --size mini --batch 16 --seq 64 --lengths full --dtype bfloat16
"""

# These take less than ten minutes on one GPU. Contenders that torch.compile cannot compile for a
# GPU are left out.
CUDA = """
encoder --lengths full
encoder --lengths real
mlm --lengths full
mlm --lengths real
causal --lengths real
seq2seq --lengths real --batch 32 --seq 128
generate --size mini --batch 8 --seq 64
encoder --lengths full --compile --only ours bert floor
mlm --lengths full --compile --only ours bert floor
local-layers --batch 1 --seq 8192 --lengths full
"""
CUDA_DEFAULTS = (
    "--size base --batch 32 --seq 256 --batches 2 --dtype bfloat16 --device cuda --rounds 5"
)


def suite(device: str) -> list[list[str]]:
    """The tasks with their options."""
    if device == "cpu":
        return [line.split() for line in CPU.strip().splitlines()]
    runs = []
    for line in CUDA.strip().splitlines():
        task, *options = line.split()
        # The options of a run come last, and override the defaults.
        runs.append([task, *CUDA_DEFAULTS.split(), *options])
    return runs
