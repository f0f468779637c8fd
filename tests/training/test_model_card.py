"""The Hub can read the measured cards, and a card shows what it should of its training."""

import re
from pathlib import Path

import pytest
from conftest import ROOT
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results
from program import TINY, read_json, results_of, train, write_rows
from saved_models import save_bert

from roformer_lite.recipes import RECIPES

CARDS = sorted((ROOT / "model_cards").glob("*/README.md"))


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_measured_card(path):
    """The classes of huggingface_hub read the metadata and write them again unchanged.

    The metrics are the ones of results.json.
    """
    card = ModelCard.load(path)
    data = card.data
    results = read_json(path.with_name("results.json"))
    recipe_class = RECIPES[results["task"]]
    recipe = path.with_name("recipe.sh").read_text("utf-8")
    # A recipe may run another recipe, but both must have the same license.
    (license,) = set(re.findall(r"--license (\S+)", results["command"] + recipe))
    assert (data.license, data.library_name, data.pipeline_tag) == (
        license,
        recipe_class.library,
        recipe_class.pipeline_tag,
    )
    assert (
        ModelCardData(**data.to_dict()).to_yaml()
        == data.to_yaml()
        == card.content.split("---\n")[1].rstrip()
    )

    name, evaluations = model_index_to_eval_results(data.to_dict()["model-index"])
    assert name == path.parent.name and evaluations == data.eval_results
    measured = {}
    for split, metrics in results["metrics"].items():
        for metric, value in metrics.items():
            if metric != "loss":
                measured[split, metric] = round(value, 4)
    assert {
        (result.dataset_split, result.metric_name): result.metric_value for result in evaluations
    } == measured


@pytest.fixture
def data(current_folder) -> Path:
    rows = [{"text": f"my secret {number}", "label": "xy"[number % 2]} for number in range(9)]
    Path("private").mkdir()
    return write_rows(current_folder / "private" / "data.jsonl", rows)


def card_of(command: str, data: Path, out: Path, **options: object) -> ModelCard:
    """The card of a short training."""
    train(f"{command} --max_steps 1 --baselines false", data, out, **options)
    return ModelCard.load(out / "README.md")


@pytest.mark.parametrize("task", ["mlm", "classify"])
def test_a_card_shows_neither_data_nor_paths(task, data, tmp_path):
    base = tmp_path / "base"
    card_of(f"mlm {TINY}", data, base)
    # A tokenizer of another family may have another mask token.
    for path in base.glob("tokenizer*.json"):
        path.write_text(path.read_text().replace("[MASK]", "<mask>"))
    out = tmp_path / "models" / "m"
    card = card_of(f"{task} --use_cpu", data, out, model_name_or_path=base)
    assert "secret" not in card.content and str(tmp_path) not in card.content
    assert card.data.base_model is None
    assert "Trained from the weights of base on data.jsonl" in card.text
    assert ("The <mask> is fine today." if task == "mlm" else "a text to classify") in card.text
    assert "[MASK]" not in card.text and 'from_pretrained("m")' in card.text
    assert set(card.data.tags) == {"roformer-lite", task}
    command = f"train {task} --train_file data.jsonl --model_name_or_path base"
    assert command in card.text
    # The rate is higher than that of models from elsewhere.
    assert "| learning_rate | 0.0003 |" in card.text


def test_names_that_a_reader_can_use(data):
    card = card_of(f"mlm {TINY}", data, Path("models/m"), dataset_title="Letters")
    assert "roformer-lite predict m\n" in card.text
    assert 'from_pretrained("m")' in card.text
    assert "Trained from scratch on Letters" in card.text and card.data.model_name == "m"
    assert "| learning_rate | 0.0005 |" in card.text


def test_names_of_the_hub_stay(data, tmp_path, monkeypatch):
    """A model of the Hub is in the cache."""
    cached = tmp_path / "models--google--bert"
    save_bert(cached / "snapshots" / "1", ["my", "secret"])
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    names = {"model_name_or_path": "google/bert", "hub_model_id": "me/m2"}
    card = card_of("mlm --use_cpu", data, Path("m"), **names)
    assert card.data.base_model == "google/bert" and "from the weights of google/bert" in card.text
    assert 'from_pretrained("me/m2")' in card.text and card.data.model_name == "me/m2"
    assert "| learning_rate | 0.0001 |" in card.text


def test_labels_and_data_of_a_classifier(current_folder):
    """Of more than 30 labels, the 30 worst of those that have rows are shown, and each metric names
    the file of its rows. Held-out rows are from the training file.

    The whole table of a few labels is tested in test_one_way_to_answer.py.
    """
    rows = [
        {"text": f"a {row}", "text_pair": f"b {number}", "label": f"l|{number}"}
        for number in range(32)
        for row in range(4)
    ]
    write_rows(Path("test.jsonl"), [row for row in rows if row["label"] != "l|7"])
    command = f"classify {TINY} --text_pair_column text_pair --validation_fraction 0.3"
    command += " --join_baseline false"
    files = {"test_file": "test.jsonl", "language": "en"}
    card = card_of(command, write_rows(Path("data.jsonl"), rows), Path("m"), **files)
    pattern = r"^\| l\\\|(\d+) \| [\d.]+ \| [\d.]+ \| ([\d.]+) \| 4 \|$"
    shown = re.findall(pattern, card.text, re.MULTILINE)
    found = results_of(Path("m"))["by_label"]["test"]
    worst = sorted(scores["f1"] for scores in found.values() if scores["support"])[:30]
    assert [float(score) for _, score in shown] == pytest.approx(worst, abs=5e-4)
    assert "7" not in dict(shown)
    assert f"The 30 labels with the lowest F1 of {len(found)}" in card.text
    assert '"a text to classify", "the second text of a pair"' in card.text
    _, entries = model_index_to_eval_results(card.data.to_dict()["model-index"])
    names = {(entry.dataset_split, entry.dataset_name) for entry in entries}
    assert names == {("validation", "data.jsonl"), ("test", "test.jsonl")}
    # Nothing in the metadata is null.
    assert "null" not in card.data.to_yaml() and card.data.language == ["en"]
