"""The floor of the benchmarks counts exactly the products of the model, and all contenders do the
same work."""

import json
import sys

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from toy_training import make_model

from roformer_lite.train.callbacks import SeededCollator
from roformer_lite.train.trainer import RoFormerLiteTrainer

sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402
    ablations,
    accelerator,
    contenders,
    graphs,
    padding_free,
    stacks,
    trainers,
    training_changes,
    versions,
    versions_worker,
)
from benchmarks.floor import attention_operations, backward_too, stack_products  # noqa: E402
from benchmarks.report import markdown  # noqa: E402
from benchmarks.workload import Workload, make_batches  # noqa: E402

WORK = Workload(size="tiny", batch=4, seq=16, lengths="full", vocab_size=100)


def operations(products) -> int:
    return sum(2 * m * k * n for m, k, n in products)


def test_floor_counts_the_products_of_the_model():
    config = stacks.our_config(WORK)
    # The counter does not see the products inside sdpa.
    model = stacks.stock(config, "encoder", "eager").eval()
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
    rows = markdown(folder / "results" / "cpu")
    rows = rows.replace(" cpu vocabulary", ", vocabulary").replace(" cpu", "")
    assert rows in (folder / "README.md").read_text("utf-8") and len(rows.splitlines()) > 30


@pytest.mark.parametrize("name", padding_free.MODELS)
def test_padding_free_models_do_the_same_work(name):
    """Both contenders have the same loss and the same gradients wherever they are timed, and their
    weights share memory."""
    options = padding_free.Options(models=[name], quick=True)
    rows = list(padding_free.comparisons(options))
    orders = ("random", "grouped", "full")
    expected = [(mode, order) for mode in ("step", "evaluation") for order in orders]
    assert [(row["mode"], row["order"]) for row in rows] == expected
    for row in rows:
        assert row["difference"] <= 1e-4
        assert (row["places_per_token"] > 1) == (row["order"] != "full")
        assert all(times["least_seconds"] > 0 for times in row["contenders"].values())
    stock, free = padding_free.both_contenders(name, options).values()
    for weight, other in zip(stock.parameters(), free.parameters(), strict=True):
        assert weight.data_ptr() == other.data_ptr()


@pytest.mark.parametrize("name", ["bert/classify", "llama/causal-lm", "ours/seq2seq"])
def test_padding_free_models_learn_the_same_from_the_trainer(name):
    options = padding_free.Options(models=[name], modes=["trainer"], orders=["grouped"], quick=True)
    (row,) = padding_free.comparisons(options)
    assert row["difference"] <= 1e-4


def test_result_of_padding_free(tmp_path, capsys):
    command = "--quick --orders random grouped --models bert/classify --modes step"
    files = ["--out", str(tmp_path), "--plot", str(tmp_path / "steps.svg")]
    padding_free.main([*command.split(), *files])
    printed = capsys.readouterr().out
    assert "| model | step, random | step, grouped |" in printed
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert result["machine"]["processor"]
    assert [row["order"] for row in result["rows"]] == ["random", "grouped"]
    assert (tmp_path / "steps.svg").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minilm", "ours-small"])
def test_graphs_have_the_same_outputs(name, tmp_path):
    """Both graphs have the same outputs at real tokens, and in int8 those of similar scales."""
    graphs.main(["--quick", "--models", name, "--out", str(tmp_path)])
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    expected = [(engine, order) for engine in graphs.ENGINES for order in padding_free.ORDERS]
    assert [(row["engine"], row["order"]) for row in rows] == expected
    for row in rows:
        assert row["difference"] <= (0.1 if "int8" in row["engine"] else 1e-4)
        assert (row["places_per_token"] > 1) == (row["order"] != "full")
        assert all(times["least_seconds"] > 0 for times in row["contenders"].values())


@pytest.mark.parametrize("name", accelerator.MODELS)
def test_forms_of_attention_do_the_same_work(name, tmp_path, capsys):
    """Every form has the loss and the gradient of the stock model, and is the one that is named."""
    command = ["--quick", "--device", "cpu", "--models", name]
    accelerator.main([*command, "--out", str(tmp_path)])
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    for row in rows:
        # Neither a CPU nor DeBERTa's own attention has all forms.
        has_forms = "deberta" not in name
        forms = ["by document", "groups"] if has_forms else []
        assert list(row["contenders"]) == ["stock", *forms, "default"]
        assert all(row["forms"][form] == [form] for form in forms)
        limit = 1e-4 if row["dtype"] == "float32" else 0.1
        assert all(difference <= limit for difference in row["differences"].values())
    assert f"| {name} | 128 | bfloat16 |" in capsys.readouterr().out


def test_a_machine_without_an_accelerator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--device cpu"):
        accelerator.main(["--quick"])


@pytest.mark.slow
def test_trainers_learn_the_same(tmp_path):
    """Every case does the same work with and without padding."""
    trainers.main(["--quick", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows_of_table"]
    assert [row["case"] for row in rows] == [*trainers.CASES]
    for row in rows:
        assert row["difference"] <= 1e-4, row["case"]


def test_versions_have_cases_with_names_of_their_own():
    cases = versions.all_cases()
    assert len({case.name for case in cases}) == len(cases)
    options = versions.Options(other=".", cases=["generate-mini-8x"])
    assert {case.task for case in options.chosen_cases()} == {"causal-lm", "seq2seq"}


def test_versions_map_the_same_weights(tmp_path):
    size = contenders.SIZES["tiny"]
    first, second = (contenders.new_model("bert", "classify", size, 99) for _ in range(2))
    second.classifier.weight.data.zero_()
    expected = first.classifier.weight.clone()
    for model in (first, second):
        versions_worker.map_weights(model, tmp_path, "bert")
        assert torch.equal(model.classifier.weight, expected)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_versions_do_the_same_work(tmp_path):
    """This version is compared with itself, so every difference must be zero."""
    cases = ["encoder-forward-small-8x128", "classify-step-mini-16x128-real"]
    cases += ["causal-lm-step-mini-8x128-real", "seq2seq-step-mini-32x96", "mini-8x64"]
    command = ["--quick", "--other", str(ROOT), "--out", str(tmp_path), "--cases", *cases]
    versions.main(command)
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert {row["mode"] for row in result["rows"]} == set(versions_worker.WORKS)
    for row in result["rows"]:
        assert row["difference"] == 0
        assert list(row["contenders"]) == ["this", "other", *versions.PEERS.get(row["task"], ())]


@pytest.mark.slow
def test_versions_refuse_a_folder_without_the_package(tmp_path):
    with pytest.raises(SystemExit, match="has no hf_roformer_lite|process of other ended"):
        versions.main(["--quick", "--other", str(tmp_path)])


@pytest.mark.parametrize("kind", ["mlm", "causal"])
@pytest.mark.parametrize("change", training_changes.CHANGES_OF_MODELS)
def test_changes_of_a_model(change, kind, ragged_input):
    """Each change does what it promises, and padding still has no effect on real tokens."""
    model = make_model(kind)
    before = model(**ragged_input).logits
    training_changes.CHANGES_OF_MODELS[change](model)
    after = model(**ragged_input).logits
    stack = model.model
    real = ragged_input["attention_mask"].bool()
    if change == "zero-outputs":
        alone = stack.final_norm(stack.embeddings(ragged_input["input_ids"], torch.zeros(1)))
        expected, _ = model.logits_and_loss(alone, None, False, None, 0.0)
        torch.testing.assert_close(after[real], expected[real])
        return
    if change == "bigrams":
        # The table of bigrams begins with zeros, and changes nothing before it is trained.
        torch.testing.assert_close(after, before)
        nn.init.normal_(stack.embeddings.bigram_embeddings.weight)
    else:
        stack.layers[0].self_attn.q_proj.weight.data *= 3
        stack.layers[0].self_attn.q_proj.bias.data *= 3
        torch.testing.assert_close(model(**ragged_input).logits, after)
    changed = model(**ragged_input).logits
    assert (changed - before)[real].abs().max() > 0.1
    # This is the second row without its padding.
    row = ragged_input["input_ids"][1:2, :9]
    torch.testing.assert_close(model(row).logits, changed[1:2, :9])


# The number of steps follows as the next word of the command.
TINY = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 num_hidden_layers=1 "
    "--vocab_size 300 --use_cpu --validation_fraction 0 --per_device_train_batch_size 8 "
    "--max_steps"
).split()


def make_text(path):
    words = [[f"{name}{i}" for i in range(40)] for name in ("noun", "verb", "name")]
    lines = [" ".join(words[i % 3][: 5 + i % 30]) for i in range(200)]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("change", training_changes.CHANGES_OF_MODELS)
def test_a_changed_model_is_trained_and_saved(change, tmp_path, monkeypatch):
    # The change replaces this function. monkeypatch restores it after the test.
    monkeypatch.setattr(training_changes.train, "make_start", training_changes.train.make_start)
    files = [make_text(tmp_path / "text.txt")] * 2
    output = ["--output_dir", str(tmp_path / "model")]
    command = ["train", "seq2seq", "--train_file", *files, *TINY, "2", *output]
    assert training_changes.main(change, command) == 0
    names = load_file(tmp_path / "model" / "model.safetensors")
    added = {"query-key-norm": "head_norm", "bigrams": "bigram_embeddings"}.get(change, "norm")
    assert any(added in name for name in names)


@pytest.mark.parametrize(
    "words, message",
    [
        ("--variants zero-output", "must be one of.*zero-outputs"),
        ("--variants falling-mask-ratio --max_steps 9", "is for mlm, not for causal"),
        ("--variants short-first", "give --max_steps"),
        (
            "--variants rising-batch --max_steps 9 --max_tokens_per_batch 99",
            "no max_tokens_per_batch",
        ),
        ("--training_arguments=eval_strategy=steps", "the last weights are measured"),
        ("--bf16 true", "it is false in all runs"),
    ],
)
def test_comparisons_that_would_not_be_fair(words, message, tmp_path):
    data = ["--train_file", str(tmp_path / "a.txt"), "--validation_fraction", "0.1"]
    (tmp_path / "a.txt").write_text("a\n")
    with pytest.raises(SystemExit, match=message):
        ablations.main(["--task", "causal", "--out", str(tmp_path / "out"), *data, *words.split()])
    assert not (tmp_path / "out").exists()


TRAININGS = [
    (change, task)
    for change in training_changes.CHANGES_OF_TRAININGS
    for task in training_changes.TASKS_OF_CHANGES.get(change, ("mlm", "causal", "seq2seq"))
]


@pytest.mark.parametrize("change, task", TRAININGS)
def test_changes_of_a_training(change, task, tmp_path, monkeypatch):
    """Each change shows in the batches, recorded in the order in which the model sees them."""
    # The number of rows of each batch, its longest row, its share of labelled tokens, and whether
    # the model is causal.
    seen: list[tuple[int, int, float, bool]] = []
    usual = RoFormerLiteTrainer.compute_loss

    def compute_loss(trainer, model, inputs, *args, **kwargs):
        labelled = (inputs["labels"] != -100).float().sum() / inputs["attention_mask"].sum()
        lengths = inputs["attention_mask"].sum(1)
        is_causal = model.stacks()[-1].is_decoder
        seen.append((len(lengths), int(lengths.max()), labelled.item(), is_causal))
        return usual(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(RoFormerLiteTrainer, "compute_loss", compute_loss)
    loader = RoFormerLiteTrainer.get_train_dataloader
    # The changes replace these functions. monkeypatch restores them after the test.
    monkeypatch.setattr(RoFormerLiteTrainer, "get_train_dataloader", loader)
    for name in ("on_step_begin", "__call__"):
        monkeypatch.setattr(SeededCollator, name, getattr(SeededCollator, name))
    monkeypatch.setattr(training_changes, "OTHER_WAY_EVERY", 5)
    files = [make_text(tmp_path / "text.txt")]
    own = ["10"]
    if task == "seq2seq":
        files *= 2
    else:
        own += ["--block_size", "64"]
    if task == "mlm":
        # The bounds below are relative to this share of masked tokens.
        own += ["--mlm_probability", "0.15"]
    output = ["--output_dir", str(tmp_path / "model")]
    command = ["train", task, "--train_file", *files, *TINY, *own, *output]
    assert training_changes.main(change, command) == 0
    num_steps = 25 if change == "rising-batch" else 10
    # The batches before these belong to trials, which measure time and memory.
    seen = seen[-num_steps:]
    rows, longest, labelled, causal = zip(*seen, strict=True)
    if change == "rising-batch":
        assert rows == (2,) * 20 + (8,) * 5
    elif change == "short-first":
        ratio = 1.2 if task == "seq2seq" else 3.5
        assert max(longest[:5]) <= max(longest[5:]) / ratio
    elif change == "falling-mask-ratio":
        assert sum(labelled[:3]) > 1.4 * sum(labelled[-3:])
    elif change == "more-masks":
        assert 0.2 < sum(labelled) / 10 < 0.4
    else:
        assert causal == tuple((task == "causal") != (step % 5 == 4) for step in range(10))
        assert (labelled[4] < 0.4) == (task == "causal")
