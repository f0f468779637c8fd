"""The floor of the benchmarks counts exactly the products of the model, and all contenders do the
same work."""

import sys
from pathlib import Path

import pytest
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(ROOT))

from program import read_json

from benchmarks import (  # noqa: E402
    accelerator,
    contenders,
    floor,
    graphs,
    padding_free,
    trainers,
    versions,
    versions_worker,
)
from benchmarks.__main__ import main  # noqa: E402
from benchmarks.workload import Workload, make_batches  # noqa: E402


def result_of(command: list[str], folder: Path) -> dict:
    main([*command, "--out", str(folder)])
    (path,) = folder.glob("*.json")
    return read_json(path)


def test_floor_counts_the_products_of_the_model():
    """They are those of the layers, of cross-attention and of the head."""
    size = contenders.SIZES["tiny"]
    work = Workload(batch=4, seq=16, lengths="full", batches=1, vocab_size=100)
    (source,) = make_batches(work)
    (target,) = make_batches(work, salt=1)
    # The counter does not see the products inside sdpa.
    model = contenders.new_model("roformer_lite", "seq2seq", size, 100, attention="eager").eval()
    with FlopCounterMode(display=False) as counter:
        loss = model(**contenders.inputs_of("seq2seq", source, target)).loss
        forward = counter.get_total_flops()
        loss.backward()
    products, attention = floor.products_of("seq2seq", model.config, source, target)
    # The floor leaves out the hidden half of the decoder's scores, which eager attention computes.
    attention += floor.attention_operations(model.config.decoder, 4 * 16**2 / 2)
    assert forward == floor.operations(products) + attention
    both = floor.operations(floor.backward_too(products)) + 3 * attention
    assert counter.get_total_flops() == both


def test_floor_of_a_step(tmp_path):
    command = "floor --size tiny --batch 4 --seq 16 --vocab_size 99 --rounds 1"
    rows = result_of(command.split(), tmp_path)["rows"]
    assert {row["model"] for row in rows} == set(floor.MODELS)
    assert all(row["contenders"]["floor"]["least_seconds"] > 0 for row in rows)


def test_losses_agree(tmp_path):
    command = (
        "losses --tokens 300 --hidden_size 16 --vocab_size 99 --label_smoothing 0.1 --rounds 1"
    )
    for row in result_of(command.split(), tmp_path)["rows"]:
        limit = 1e-6 if row["dtype"] == "float32" else 1e-2
        assert row["loss"] < limit and row["gradients"] < limit


@pytest.mark.slow
@pytest.mark.parametrize("name", padding_free.MODELS)
def test_padding_free_models_do_the_same_work(name):
    """Both contenders have the same loss and the same gradients wherever they are timed, and their
    weights share memory."""
    options = padding_free.Options(models=[name], modes=[*padding_free.MODES], quick=True)
    rows = list(padding_free.comparisons(options))
    for row in rows:
        assert row["difference"] <= 1e-4
        assert (row["places_per_token"] > 1) == (row["order"] != "full")
    stock, free = padding_free.both_contenders(name, options).values()
    for weight, other in zip(stock.parameters(), free.parameters(), strict=True):
        assert weight.data_ptr() == other.data_ptr()


@pytest.mark.slow
def test_result_of_padding_free(tmp_path):
    command = "padding_free --quick --orders random grouped --models bert/classify --modes step"
    plot = ["--memory", "--plot", str(tmp_path / "steps.svg")]
    result = result_of([*command.split(), *plot], tmp_path)
    assert result["machine"]["processor"]
    assert [row["order"] for row in result["rows"]] == ["random", "grouped"]
    assert all(set(row["memory_mib"]) == {"sdpa", "padding_free"} for row in result["rows"])
    assert (tmp_path / "steps.svg").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minilm", "roformer_lite-small"])
def test_graphs_have_the_same_outputs(name, tmp_path):
    """Both graphs have the same outputs at real tokens, and in int8 those of similar scales."""
    rows = result_of(["graphs", "--quick", "--models", name], tmp_path)["rows"]
    assert {row["engine"] for row in rows} == set(graphs.ENGINES)
    for row in rows:
        assert row["difference"] <= (0.1 if "int8" in row["engine"] else 1e-4)
        assert (row["places_per_token"] > 1) == (row["order"] != "full")


@pytest.mark.parametrize("name", accelerator.MODELS)
def test_forms_of_attention_do_the_same_work(name, tmp_path):
    """Every form has the loss and the gradient of the stock model, and is the one that is named."""
    command = ["accelerator", "--quick", "--device", "cpu", "--models", name]
    rows = result_of(command, tmp_path)["rows"]
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    for row in rows:
        # Neither a CPU nor DeBERTa's own attention has all forms.
        has_forms = "deberta" not in name
        forms = ["by document", "rows"] if has_forms else []
        assert list(row["contenders"]) == ["stock", *forms, "default"]
        assert all(row["forms"][form] == [form] for form in forms)
        limit = 1e-4 if row["dtype"] == "float32" else 0.1
        assert all(difference <= limit for difference in row["differences"].values())


@pytest.mark.slow
def test_trainers_learn_the_same(tmp_path):
    """Every case does the same work with and without padding."""
    rows = result_of(["trainers", "--quick"], tmp_path)["rows"]
    assert [row["case"] for row in rows] == [*trainers.CASES]
    for row in rows:
        assert row["difference"] <= 1e-4, row["case"]


@pytest.mark.slow
def test_versions_do_the_same_work(tmp_path):
    """This version is compared with itself, so every difference must be zero."""
    cases = ["encoder-forward-small-8x128", "classify-step-mini-16x128-real"]
    cases += ["causal-lm-step-mini-8x128-real", "seq2seq-step-mini-32x96", "mini-8x64"]
    command = ["versions", "--quick", "--other", str(ROOT), "--cases", *cases]
    result = result_of(command, tmp_path)
    assert {row["mode"] for row in result["rows"]} == set(versions_worker.WORKS)
    for row in result["rows"]:
        assert row["difference"] == 0
        assert list(row["contenders"]) == ["this", "other", *versions.PEERS.get(row["task"], ())]
