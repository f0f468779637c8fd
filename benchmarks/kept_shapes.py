"""Memory of a process over many batches of random lengths: what oneDNN keeps of the shapes that it has compiled.

All layers of a stack have the same shapes, so that `--layers 1` shows what is kept in a quarter of the time.

python -m benchmarks.kept_shapes --calls 20000 --layers 1 --vocab_size 1024
ONEDNN_PRIMITIVE_CACHE_CAPACITY=1024 LRU_CACHE_CAPACITY=1024 python -m benchmarks.kept_shapes --steps 3000
"""

import argparse
import random
import time
from pathlib import Path

import torch

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteModel,
    RoFormerLiteSeq2SeqConfig,
)


def resident_mib() -> float:
    """Memory of this process, on Linux."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def random_batch(vocab_size: int) -> dict[str, torch.Tensor]:
    """One to six rows of up to 300 tokens, padded."""
    longest = random.randint(8, 300)
    lengths = torch.tensor([longest] + [random.randint(4, longest) for _ in range(random.randint(0, 5))])
    mask = (torch.arange(longest) < lengths[:, None]).long()
    return {"input_ids": torch.randint(5, vocab_size, mask.shape), "attention_mask": mask}


def call(model: RoFormerLiteModel) -> None:
    with torch.no_grad():
        model(**random_batch(model.config.vocab_size))


def train(model: RoFormerLiteForConditionalGeneration, optimizer: torch.optim.Optimizer) -> None:
    source = random_batch(model.config.vocab_size)
    model(**source, labels=source["input_ids"]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=0, help="of an encoder of size mini")
    parser.add_argument("--steps", type=int, default=0, help="of training an encoder–decoder of size mini")
    parser.add_argument("--vocab_size", type=int, default=8192, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="in each stack (default: %(default)s)")
    options = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    sizes = {"vocab_size": options.vocab_size, "num_hidden_layers": options.layers}
    encoder = RoFormerLiteModel(RoFormerLiteConfig.from_preset("mini", **sizes)).eval()
    pair = RoFormerLiteForConditionalGeneration(RoFormerLiteSeq2SeqConfig.from_preset("mini", **sizes)).train()
    optimizer = torch.optim.AdamW(pair.parameters())
    work = (("call", options.calls, lambda: call(encoder)), ("step", options.steps, lambda: train(pair, optimizer)))
    for name, count, run in work:
        start = time.perf_counter()
        for number in range(1, count + 1):
            run()
            if number * 10 % count < 10 or number == 100:
                each = (time.perf_counter() - start) / number * 1000
                print(f"{name} {number}: {resident_mib():.0f} MiB, {each:.0f} ms each", flush=True)


if __name__ == "__main__":
    main()
