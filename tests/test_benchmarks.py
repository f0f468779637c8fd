"""The benchmarks: the floor counts exactly the model's products, and all contenders do the same work."""

import sys

from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(ROOT))

from benchmarks import padding_free, stacks  # noqa: E402
from benchmarks.floor import attention_operations, backward_too, stack_products  # noqa: E402
from benchmarks.report import markdown  # noqa: E402
from benchmarks.workload import Workload, make_batches  # noqa: E402

WORK = Workload(size="tiny", batch=4, seq=16, lengths="full", vocab_size=100)


def operations(products) -> int:
    return sum(2 * m * k * n for m, k, n in products)


def test_floor_counts_the_products_of_the_model():
    config = stacks.our_config(WORK)
    model = stacks.stock(config, "encoder", "eager").eval()  # the counter does not see into sdpa
    (batch,) = make_batches(WORK)
    with FlopCounterMode(display=False) as counter:
        states = model(batch.input_ids).last_hidden_state
        forward = counter.get_total_flops()
        states.sum().backward()
    products = list(stack_products(config, batch.tokens))
    attention = attention_operations(config, sum(length**2 for length in batch.lengths))
    assert forward == operations(products) + attention
    assert counter.get_total_flops() == operations(backward_too(products)) + 3 * attention


def test_the_published_table_is_that_of_the_published_results():
    folder = ROOT / "benchmarks"
    rows = markdown(folder / "results" / "cpu").replace(" cpu vocabulary", ", vocabulary").replace(" cpu", "")
    assert rows in (folder / "README.md").read_text("utf-8") and len(rows.splitlines()) > 30


def test_padding_free_models_learn_the_same(tmp_path):
    """All steps that are timed have the losses of the stock model, also those of converted and of packed models."""
    options = padding_free.Options(quick=True)
    families, beside = list(padding_free.compare_families(options)), list(padding_free.compare_beside(options))
    works = {"bert": ("encode", "classify", "masked lm"), "llama": ("encode", "causal lm")}
    assert [(row["family"], row["work"]) for row in families] == [
        (name, work) for name in works for work in works[name]
    ]
    assert {row["way"] for row in beside} == {"padding_free", "converted", "packed", "packed, padding_free"}
    for row in families + beside:
        assert row["difference"] <= 1e-5 and row["places"] > 1
    assert all(row[order] > 0 for row in families for order in ("random", "grouped", "full"))
    assert padding_free.markdown(families).count("\n") == 1 + len(families)
    padding_free.draw(families, tmp_path / "steps.svg")
    assert (tmp_path / "steps.svg").stat().st_size
