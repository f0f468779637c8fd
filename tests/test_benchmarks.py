"""The benchmarks: the floor counts exactly the model's products, and all contenders do the same work."""

import gzip
import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM

sys.path.insert(0, str(ROOT))

from benchmarks import by_length, long_texts, padding_free, stacks  # noqa: E402
from benchmarks.encoder_decoders import ENCODER_DECODERS  # noqa: E402
from benchmarks.floor import attention_operations, backward_too, stack_products  # noqa: E402
from benchmarks.report import markdown  # noqa: E402
from benchmarks.suites import suite  # noqa: E402
from benchmarks.tasks import TASKS  # noqa: E402
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


def test_lengths():
    real = Workload(batch=8, seq=64, lengths="real", batches=5).drawn_lengths()
    together = Workload(batch=8, seq=64, lengths="sorted", batches=5).drawn_lengths()
    assert all(max(lengths) == 64 and min(lengths) >= 4 and len(lengths) == 8 for lengths in real)
    assert sorted(sum(real, [])) == sum(together, [])
    assert Workload(batch=3, seq=9, lengths="full").drawn_lengths() == [[9, 9, 9]]


@pytest.mark.parametrize("kind", [*stacks.MAKERS, "seq2seq"])
def test_models_have_one_size(kind):
    """The number of weights outside the embeddings differs by no more than biases, norms and heads."""
    work = Workload(size="mini", batch=2, seq=16, vocab_size=100)
    if kind == "seq2seq":
        models = {name: make(work) for name, make in ENCODER_DECODERS.items()}
    else:
        models = {name: make(work, kind) for name, make in stacks.MAKERS[kind].items() if name != "x-transformers"}
    table = work.vocab_size * stacks.our_config(work).hidden_size
    sizes = {name: sum(weight.numel() for weight in model.parameters()) - table for name, model in models.items()}
    assert all(abs(size / sizes["ours"] - 1) < 0.05 for size in sizes.values()), sizes


@pytest.mark.parametrize(
    "task",
    ["mlm", "causal", "seq2seq", "generate", "local-layers", "local-layers-step", "roformer-weights", "number-types"],
)
def test_every_contender_runs(task):
    work = Workload(size="tiny", batch=2, seq=8, vocab_size=50, batches=1)
    if task in ("mlm", "causal"):
        work.only = [name for name in stacks.MAKERS[task] if name != "x-transformers"]
    torch.manual_seed(0)
    for contender in TASKS[task](work).contenders:
        contender.run()


@pytest.mark.slow
def test_command_writes_results(tmp_path):
    command = [sys.executable, "-m", "benchmarks"]
    options = ["--size", "tiny", "--batch", "2", "--seq", "8", "--rounds", "1", "--only", "ours", "bert", "floor"]
    for words in (["encoder", *options], ["table"]):
        done = subprocess.run([*command, *words, "--out", tmp_path], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert "encoder tiny" in done.stdout
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["contenders"]
    assert rows.keys() == {"ours", "bert", "floor"} and rows["ours"]["times_ours"] == 1


@pytest.mark.parametrize("is_decoder", [False, True])
def test_losses_by_position(is_decoder, tmp_path):
    """Within the trained length windows and pieces change nothing; beyond it pieces start again, and parts add up."""
    model_class = RoFormerLiteForCausalLM if is_decoder else RoFormerLiteForMaskedLM
    torch.manual_seed(0)
    model = model_class(
        RoFormerLiteConfig.from_preset("tiny", vocab_size=60, is_decoder=is_decoder, initializer_range=0.2)
    ).eval()
    blocks = torch.randint(5, 60, (3, 32))
    inputs, labels = (blocks, blocks) if is_decoder else long_texts.masked(blocks, 1)
    whole = long_texts.losses(model, inputs, labels, 32)
    pieces = long_texts.losses(model, inputs, labels, 8)
    first = long_texts.losses(model, inputs[:, :8].contiguous(), labels[:, :8].contiguous(), 8)
    torch.testing.assert_close(pieces[:, :8], first, equal_nan=True)
    if is_decoder:
        torch.testing.assert_close(whole[:, :7], first[:, :7])
        assert whole[:, -1].isnan().all() and whole[:, :-1].isfinite().all()
    expected = model(inputs, labels=labels).loss
    torch.testing.assert_close(whole.nanmean(), expected.detach(), rtol=1e-4, atol=1e-5)
    for fields in long_texts.scalings(model.config, 8, 4).values():
        found = long_texts.losses(long_texts.with_fields(model, fields), inputs, labels, 32)
        assert found[~whole.isnan()].isfinite().all() and (not fields or not torch.equal(found, whole))


@pytest.mark.slow
def test_lengths_are_compared(tmp_path):
    """Every contender, and a plot of four panels, seconds and memory of both kinds of work."""
    by_length.main(["--size", "tiny", "--lengths", "1024", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "by-length-tiny.json").read_text())["contenders"]
    assert rows.keys() == {f"{kind}, {name}" for kind in by_length.TASKS for name in by_length.contenders(kind)}
    for row in rows.values():
        assert row["1024 seconds"] > 0 and row["1024 above_model_mib"] > 0
    assert (tmp_path / "by-length.svg").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "engines"),
    [("encoder", ["torch", "torch-bfloat16", "transformers", "onnx"]), ("seq2seq", ["torch", "transformers"])],
)
def test_engines_are_compared(kind, engines, tmp_path):
    """Each engine in a process of its own, with the answers of torch."""
    options = f"--kind {kind} --size tiny --seq 8 --rows 1 2 --rounds 1 --new_tokens 4 --out {tmp_path}/a.json"
    command = [sys.executable, "-m", "benchmarks", "inference", *options.split(), "--engines", *engines]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "a.json").read_text())["engines"]
    assert list(rows) == engines and "largest_difference" not in rows["transformers"]
    assert "onnx" not in rows or rows["onnx"]["largest_difference"] <= 1e-5
    for row in rows.values():
        assert row["seconds_1"] > 0 and row["processor_seconds_2"] > 0 and row["peak_mib"] > 100


def test_the_published_table_is_that_of_the_published_results():
    folder = ROOT / "benchmarks"
    rows = markdown(folder / "results" / "cpu").replace(" cpu vocabulary", ", vocabulary").replace(" cpu", "")
    assert rows in (folder / "README.md").read_text("utf-8") and len(rows.splitlines()) > 30


def test_suites_name_tasks():
    assert {
        words[0].removeprefix("memory-of-") for device in ("cpu", "cuda") for words in suite(device)
    } <= TASKS.keys()


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


def test_few_batches_stand_for_many():
    """They are padded as those of the Trainer are, in random order and grouped by length."""
    shares = {}
    for lengths, batches in (("real", 1), ("real", 50), ("sorted", 2), ("sorted", 50)):
        work = padding_free.Paragraphs(batch=16, seq=256, lengths=lengths, batches=batches)
        rows = work.drawn_lengths()
        assert [len(row) for row in rows] == [16] * batches and all(4 <= min(row) <= max(row) <= 256 for row in rows)
        shares[lengths, batches] = sum(16 * max(row) for row in rows) / sum(map(sum, rows))
    assert abs(shares["real", 1] / shares["real", 50] - 1) < 0.05 and shares["real", 50] > 3
    assert abs(shares["sorted", 2] / shares["sorted", 50] - 1) < 0.05 and shares["sorted", 50] < 1.1


@pytest.mark.slow
def test_padding_free_trainings(tmp_path):
    """Each in a process of its own, by the command, whose table and file have them."""
    questions = [[f"house {n} of {n % 7}" + " again" * (n % 9), f"street {n % 5}"] for n in range(80)]
    with gzip.open(tmp_path / "questions.json.gz", "wt") as file:
        json.dump({"train": questions}, file)
    options = ["--quick", "--parts", "training", "--questions", tmp_path / "questions.json.gz"]
    command = [sys.executable, "-m", "benchmarks", "padding_free", *options, "--out", tmp_path / "results"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results").glob("*.json")
    rows = json.loads(path.read_text())["training"]
    assert padding_free.markdown(rows) in done.stdout and [row["order"] for row in rows] == ["random", "grouped"]
    for row in rows:
        assert abs(row["stock, last loss"] - row["padding_free, last loss"]) < 1e-5
