"""The benchmarks: the floor counts exactly the model's products, and all contenders do the same work."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM

sys.path.insert(0, str(ROOT))

from benchmarks import long_texts, padding_free, stacks  # noqa: E402
from benchmarks.encoder_decoders import ENCODER_DECODERS  # noqa: E402
from benchmarks.floor import attention_operations, backward_too, stack_products  # noqa: E402
from benchmarks.inference import KINDS  # noqa: E402
from benchmarks.report import engine_tables, markdown  # noqa: E402
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


@pytest.mark.slow
def test_every_engine_in_a_process_of_its_own(tmp_path):
    """All answer as torch does; what is missing is named, and the table of another processor stands beside."""
    out = tmp_path / "results"
    options = ["--size", "tiny", "--seq", "16", "--rounds", "1", "--new_tokens", "3", "--rows", "1", "4"]
    command = [sys.executable, "-m", "benchmarks", "inference", *options, "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.json")
    result = json.loads(path.read_text())
    for kind in KINDS:
        engines = result["engines"][kind]
        missing = {engine for engine, found in engines.items() if "missing" in found}
        assert missing == {"vllm", {"encode": "", "classify": "ctranslate2"}.get(kind, "openvino")} - {""}, engines
        for engine in {*engines} - missing:
            found = engines[engine]
            assert min(found["seconds_1"], found["seconds_4"], found["processor_seconds_4"], found["peak_mib"]) > 0
            assert found.get("tokens_that_differ", 0) == 0 or "bfloat16" in engine
            assert found.get("largest_difference", 0) < (0.05 if "bfloat16" in engine else 1e-5)
    milliseconds = result["engines"]["classify"]["torch"]["processor_seconds_4"] * 1000
    assert f"| classify | 4 | {milliseconds:,.1f} |" in done.stdout
    table = engine_tables(out)
    assert done.stdout.endswith(table + "\n")
    (out / "another.json").write_text(json.dumps({**result, "machine": {**result["machine"], "processor": "another"}}))
    tables = engine_tables(out)
    assert table in tables and "**another" in tables and "vllm, encode: missing; no --vllm" in tables


@pytest.mark.parametrize("is_decoder", [False, True])
def test_losses_by_position(is_decoder):
    """Parts add up to the model's loss; pieces begin again."""
    model_class = RoFormerLiteForCausalLM if is_decoder else RoFormerLiteForMaskedLM
    torch.manual_seed(0)
    model = model_class(RoFormerLiteConfig.from_preset("tiny", vocab_size=60, is_decoder=is_decoder)).eval()
    blocks = torch.randint(5, 60, (3, 32))
    inputs, labels = (blocks, blocks) if is_decoder else long_texts.masked(blocks, 1)
    whole, pieces = (long_texts.losses(model, inputs, labels, length) for length in (32, 8))
    first = long_texts.losses(model, inputs[:, :8].contiguous(), labels[:, :8].contiguous(), 8)
    torch.testing.assert_close(pieces[:, :8], first, equal_nan=True)
    torch.testing.assert_close(whole.nanmean(), model(inputs, labels=labels).loss.detach(), rtol=1e-4, atol=1e-5)


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
