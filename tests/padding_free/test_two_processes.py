"""Two data-parallel processes, one of which has a batch without labels.

Every parameter must get a gradient there too, or the other process would wait for it."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from comparisons import batch_for, batch_of_pairs, build, gradients
from torch import multiprocessing

from hf_roformer_lite import padding_free

# This test starts a pair of processes.
pytestmark = pytest.mark.slow
NAMES = (
    "bert mlm",
    "bert tokens",
    "modernbert mlm",
    "llama",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
)


def train(rank: int, folder: Path) -> None:
    """Save the loss and the gradients of each model, stock and padding-free."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    results = {}
    for name in NAMES:
        batch = batch_of_pairs() if name.endswith("Generation") else batch_for(name)
        if rank == 1:
            batch["labels"] = torch.full_like(batch["labels"], -100)
        for is_free in (False, True):
            model = padding_free(build(name).double(), enabled=is_free)
            parallel = torch.nn.parallel.DistributedDataParallel(model)
            results[name, is_free] = gradients(parallel, batch)
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[tuple[str, bool], tuple[torch.Tensor, torch.Tensor]]]:
    """What each of the two processes has saved."""
    folder = tmp_path_factory.mktemp("two")
    multiprocessing.spawn(train, args=(folder,), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("name", NAMES)
def test_a_process_without_labels(name, results):
    for result in results:
        torch.testing.assert_close(
            result[name, True], result[name, False], rtol=1e-9, atol=1e-9, equal_nan=True
        )
    (_, gradient), (_, other) = (result[name, True] for result in results)
    assert gradient.equal(other) and gradient.norm() > 0.1
