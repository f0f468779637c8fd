"""Fine-tuning a model that has labels: its head is kept for the same labels and is new for any others."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from roformer_lite.cli import main

TINY = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1 "
    "hidden_dropout=0.0 --vocab_size 300 --learning_rate 3e-3"
).split()
COMMON = "--disable_tqdm true --use_cpu true --training_arguments eval_strategy=no".split()
UNCHANGED = "--learning_rate 0 --weight_decay 0 --max_steps 1".split()
TEXTS = ["a cat", "a dog", "the red house", "one small wing"]


def write_rows(path: Path, labels: list[str]) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 10), "utf-8")
    return path


def write_tags(path: Path, tags: list[str]) -> Path:
    sentence = "".join(f"{word} {tag}\n" for word, tag in zip(("Anna", "in", "Rome"), tags, strict=True))
    path.write_text((sentence + "\n") * 20, "utf-8")
    return path


def train(task: str, data: Path, model: Path, *options: str | Path) -> Path:
    arguments = ["train", task, "--train_file", data, "--output_dir", model, *COMMON, *options]
    assert main([str(argument) for argument in arguments]) == 0
    return model


def weights(model: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Those of the stack and those of the head."""
    tensors = load_file(model / "model.safetensors")
    stack = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    return stack, {name: tensor for name, tensor in tensors.items() if name not in stack}


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def labels_of(model: Path) -> dict[str, int]:
    return json.loads((model / "config.json").read_text("utf-8"))["label2id"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    data = write_rows(folder / "a.jsonl", ["cat", "cat", "thing", "thing"])
    return train("classify", data, folder / "model", *TINY, "--num_train_epochs", "4")


def predictions(model: Path, capsys: pytest.CaptureFixture) -> list[str]:
    lines = model.parent / "lines.txt"
    lines.write_text("".join(text + "\n" for text in TEXTS), "utf-8")
    capsys.readouterr()
    assert main(["predict", str(model), "--input_file", str(lines)]) == 0
    return capsys.readouterr().out.splitlines()


def test_equal_labels_keep_the_head_and_their_order(classifier, tmp_path, capsys):
    turned = shutil.copytree(classifier, tmp_path / "turned")  # as a model that another program has made may be
    config = json.loads((turned / "config.json").read_text("utf-8"))
    config |= {"id2label": {"0": "thing", "1": "cat"}, "label2id": {"thing": 0, "cat": 1}}
    (turned / "config.json").write_text(json.dumps(config), "utf-8")
    data = write_rows(tmp_path / "a.jsonl", ["thing", "cat", "thing", "cat"])
    for given in (classifier, turned):
        options = [*UNCHANGED, "--test_file", data]
        tuned = train("classify", data, tmp_path / f"from-{given.name}", "--model_name_or_path", given, *options)
        assert "new head" not in capsys.readouterr().err
        assert all(map(same, weights(tuned), weights(given)))
        assert labels_of(tuned) == labels_of(given)
        assert predictions(tuned, capsys) == predictions(given, capsys)
        accuracy = json.loads((tuned / "results.json").read_text("utf-8"))["metrics"]["test"]["accuracy"]
        right = [answer.split("\t")[0] for answer in predictions(tuned, capsys)]
        true = ["thing", "cat", "thing", "cat"]
        assert accuracy == sum(map(str.__eq__, right, true)) / 4  # the metrics count by the same numbers


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        (["yes", "yes", "no", "no"], [], "its labels are cat, thing, those of the training data no, yes"),
        (["a", "b", "c", "d"], [], "its labels are cat, thing, those of the training data a, b, c, d"),
        (["1", "2", "3", "4"], ["--problem_type", "regression"], "those of the training data value"),
    ],
    ids=["as many", "more", "a number"],
)
def test_other_labels_get_a_new_head(classifier, tmp_path, capsys, labels, options, said):
    data = write_rows(tmp_path / "a.jsonl", labels)
    start = ["--model_name_or_path", classifier, "--fit_head", "false", *UNCHANGED]
    tuned = train("classify", data, tmp_path / "m", *start, *options)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "new head" in line]
    assert line.startswith(f"{classifier}: ") and said in line
    (stack, head), (old_stack, old_head) = weights(tuned), weights(classifier)
    assert same(stack, old_stack)
    name = "classifier.out_proj.weight"
    assert head[name].shape[0] == len(labels_of(tuned)) and head.keys() == old_head.keys()
    assert head[name].shape != old_head[name].shape or not torch.equal(head[name], old_head[name])
    assert 0 < head[name].std() < 0.1  # initialised as in a new model
    assert len(predictions(tuned, capsys)) == len(TEXTS)


def test_tags(classifier, tmp_path, capsys):
    """A classifier becomes a tagger, that one a tagger of the same tags, and that one a tagger of others."""
    data = write_tags(tmp_path / "a.iob2", ["B-PER", "O", "O"])
    first = train("tag", data, tmp_path / "first", "--model_name_or_path", classifier, *UNCHANGED)
    assert "RoFormerLiteForSequenceClassification has no head for tag" in capsys.readouterr().err
    assert labels_of(first) == {"O": 0, "B-PER": 1}
    assert same(weights(first)[0], weights(classifier)[0]) and not same(weights(first)[1], weights(classifier)[1])
    again = train("tag", data, tmp_path / "again", "--model_name_or_path", first, *UNCHANGED)
    assert "new head" not in capsys.readouterr().err and all(map(same, weights(again), weights(first)))
    data = write_tags(tmp_path / "b.iob2", ["B-PER", "O", "B-LOC"])
    other = train("tag", data, tmp_path / "other", "--model_name_or_path", first, *UNCHANGED)
    said = "its tags are O, B-PER, those of the training data O, B-LOC, B-PER; the training starts with a new head"
    assert said in capsys.readouterr().err
    assert same(weights(other)[0], weights(first)[0]) and labels_of(other) == {"O": 0, "B-LOC": 1, "B-PER": 2}
