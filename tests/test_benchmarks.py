"""The benchmarks measure what they say: the floor counts the model's own products, contenders do the same work."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(ROOT))

from benchmarks import stacks  # noqa: E402
from benchmarks.floor import attention_operations, backward_too, stack_products  # noqa: E402
from benchmarks.pairs import PAIRS  # noqa: E402
from benchmarks.suites import suite  # noqa: E402
from benchmarks.tasks import TASKS  # noqa: E402
from benchmarks.workload import Workload, make_batches  # noqa: E402

WORK = Workload(size="tiny", batch=4, seq=16, lengths="full", vocab_size=100)


def operations(products) -> int:
    return sum(2 * m * k * n for m, k, n in products)


def test_floor_counts_the_products_of_the_model():
    config = stacks.our_config(WORK)
    model = stacks.stock(config, "encoder", "eager").eval()  # the counter does not look into sdpa
    (batch,) = make_batches(WORK)
    with FlopCounterMode(display=False) as counter:
        states = model(batch.input_ids).last_hidden_state
        forward = counter.get_total_flops()
        states.sum().backward()
    products = list(stack_products(config, batch.tokens))
    attention = attention_operations(config, sum(length**2 for length in batch.lengths))
    assert forward == operations(products) + attention
    assert counter.get_total_flops() == operations(backward_too(products)) + 3 * attention


def test_lengths():
    real = Workload(batch=8, seq=64, lengths="real", batches=5).drawn_lengths()
    together = Workload(batch=8, seq=64, lengths="sorted", batches=5).drawn_lengths()
    assert all(max(lengths) == 64 and min(lengths) >= 4 and len(lengths) == 8 for lengths in real)
    assert sorted(sum(real, [])) == sum(together, [])
    assert Workload(batch=3, seq=9, lengths="full").drawn_lengths() == [[9, 9, 9]]


@pytest.mark.parametrize("kind", ["encoder", "mlm", "causal"])
def test_peers_are_of_one_size(kind):
    """Weights outside the embeddings differ by biases, norms and heads, at most."""
    work = Workload(size="mini", batch=2, seq=16, vocab_size=100)
    table = work.vocab_size * stacks.our_config(work).hidden_size
    sizes = {}
    for name, make in stacks.MAKERS[kind].items():
        if name != "x-transformers":
            sizes[name] = sum(parameter.numel() for parameter in make(work, kind).parameters()) - table
    assert all(abs(size / sizes["ours"] - 1) < 0.05 for size in sizes.values()), sizes


def test_pairs_are_of_one_size():
    work = Workload(size="mini", batch=2, seq=16, vocab_size=100)
    sizes = {name: sum(p.numel() for p in make(work).parameters()) for name, make in PAIRS.items()}
    assert all(abs(size / sizes["ours"] - 1) < 0.05 for size in sizes.values()), sizes


@pytest.mark.parametrize("task", ["mlm", "causal", "seq2seq", "generate", "local-layers", "roformer-weights"])
def test_every_contender_runs(task):
    work = Workload(size="tiny", batch=2, seq=8, vocab_size=50, batches=1)
    if task in ("mlm", "causal"):
        work.only = [name for name in stacks.MAKERS[task] if name != "x-transformers"]
    torch.manual_seed(0)
    for contender in TASKS[task](work).contenders:
        contender.run()


def test_command_writes_results(tmp_path):
    command = [sys.executable, "-m", "benchmarks"]
    options = ["--size", "tiny", "--batch", "2", "--seq", "8", "--rounds", "1", "--only", "ours", "bert", "floor"]
    for words in (["encoder", *options], ["table"], ["plot"]):
        done = subprocess.run([*command, *words, "--out", tmp_path], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["contenders"]
    assert rows.keys() == {"ours", "bert", "floor"} and rows["ours"]["times_ours"] == 1
    assert (tmp_path / "times.png").stat().st_size > 1000
    done = subprocess.run([*command, "encoder", "--only", "gpt"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "only='gpt'" in done.stderr and "eurobert" in done.stderr


def test_suites_name_tasks():
    assert {
        words[0].removeprefix("memory-of-") for device in ("cpu", "cuda") for words in suite(device)
    } <= TASKS.keys()
