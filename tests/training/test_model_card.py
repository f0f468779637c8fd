"""The Hub can read the measured cards, and a card shows what it should of its training."""

import json
import re
from types import SimpleNamespace

import pytest
from conftest import ROOT, build, seq2seq_config, stack_config
from datasets import Dataset, DatasetDict
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from hf_roformer_lite import RoFormerLiteForConditionalGeneration, RoFormerLiteForMaskedLM
from roformer_lite.errors import InputError
from roformer_lite.options.common import PublishingOptions
from roformer_lite.options.run import parse_run
from roformer_lite.recipes import RECIPES
from roformer_lite.recipes.base import Start
from roformer_lite.training.model_card import write_model_card
from roformer_lite.training.results import FinishedTraining

CARDS = sorted((ROOT / "model_cards").glob("*/README.md"))


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_measured_card(path):
    """The classes of huggingface_hub read the metadata and write them again unchanged.

    The metrics are the ones of results.json.
    """
    card = ModelCard.load(path)
    data = card.data
    results = json.loads(path.with_name("results.json").read_text("utf-8"))
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
    assert {result.metric_type for result in evaluations} == set(data.metrics)
    assert {result.dataset_type for result in evaluations} == set(data.datasets or ["text"])


def card_of(folder, results: dict, task: str, *options: str) -> ModelCard:
    """Write and load the card of an invented training on a file in `folder`."""
    rows = {
        "mlm": {"text": "my secret"},
        "classify": {"text": "my secret", "text_pair": "too", "label": "x"},
        "seq2seq": {"source": "my secret", "target": "too"},
    }
    path = folder / "private" / "data.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(rows[task]) + "\n")
    run = parse_run(task, ["--train_file", str(path), *options])
    recipe = RECIPES[task](run.data)
    if task == "seq2seq":
        model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    else:
        model = build(RoFormerLiteForMaskedLM, stack_config())
    example = recipe.reader.select_columns({**rows[task], "origin": "data.jsonl:1"})
    finished = FinishedTraining(
        run=run,
        start=Start(
            recipe=recipe,
            model=model,
            tokenizer=None,
            has_new_head=False,
            has_own_class=True,
            trained=model,
        ),
        trainer=None,
        rows=DatasetDict(train=Dataset.from_list([example])),
        encoded=DatasetDict(),
        baselines={},
        joined=None,
    )
    machine = {"device": "CPU", "processes": 1}
    training = {"steps": 1, "epochs": 1.0, "minutes": 0.1, "arguments": {}}
    # A tokenizer of another family may have another mask token.
    line = recipe.example_line(SimpleNamespace(mask_token="<mask>"))
    metrics = {
        "metrics": {},
        "by_label": {},
        "parts": {},
        "baselines": {},
        "p_values": {},
        "main_metric": "",
        "notes": [],
        "example_line": line,
    }
    results = {**metrics, "rows": {"train": 1}, "parameters": 1, "vocabulary": 9, **results}
    results |= {"command": run.command(), "training": training, "machine": machine, "versions": {}}
    write_model_card(results, finished, folder)
    return ModelCard.load(folder / "README.md")


@pytest.mark.parametrize("task", ["mlm", "classify"])
def test_a_card_shows_neither_data_nor_paths(tmp_path, task, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stack_config().save_pretrained(tmp_path / "base")
    given = ["--model_name_or_path", str(tmp_path / "base")]
    card = card_of(tmp_path, {}, task, *given, "--output_dir", str(tmp_path / "models" / "m"))
    assert "secret" not in card.content and str(tmp_path) not in card.content
    assert (
        card.data.base_model is None
        and "Trained from the weights of base on data.jsonl" in card.text
    )
    assert ("The <mask> is fine today." if task == "mlm" else "a text to classify") in card.text
    assert "[MASK]" not in card.text
    assert 'from_pretrained("m")' in card.text and set(card.data.tags) == {"roformer-lite", task}
    assert (
        f"roformer-lite train {task} --train_file data.jsonl --model_name_or_path base" in card.text
    )

    given = ["--output_dir", "models/m", "--dataset_title", "Letters"]
    card = card_of(tmp_path, {}, task, *given)
    assert "roformer-lite predict models/m" in card.text
    assert 'from_pretrained("models/m")' in card.text
    assert "Trained from scratch on Letters" in card.text and card.data.model_name == "m"


def test_names_of_the_hub_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("roformer_lite.options.run.check_model_name", lambda *_: None)
    options = ["--model_name_or_path", "google/bert", "--output_dir", "m"]
    options += ["--hub_model_id", "me/m2"]
    card = card_of(tmp_path, {}, "mlm", *options)
    assert card.data.base_model == "google/bert" and "from the weights of google/bert" in card.text
    assert 'from_pretrained("me/m2")' in card.text and card.data.model_name == "me/m2"


def test_metrics_by_label(tmp_path, monkeypatch):
    """Of more than 30 labels, the 30 worst of those that have rows are shown.

    The whole table of a few labels is tested in test_one_way_to_answer.py.
    """
    monkeypatch.chdir(tmp_path)
    others = {"precision": 0.5, "recall": 0.25}
    metrics = {f"l|{i}": {**others, "f1": i / 100, "support": 1000 * (i != 7)} for i in range(31)}
    results = {"by_label": {"validation": {}, "test": metrics}}
    card = card_of(
        tmp_path, results, "classify", "--output_dir", "m", "--text_pair_column", "text_pair"
    )
    shown = [
        int(number)
        for number in re.findall(r"^\| l\\\|(\d+) \| 0.500 \| 0.250 \|", card.text, re.MULTILINE)
    ]
    assert shown == [number for number in range(31) if number != 7]
    assert "The 30 labels with the lowest F1 of 31" in card.text
    assert (
        "### By label, on the test data" in card.text
        and "| l\\|1 | 0.500 | 0.250 | 0.010 | 1,000 |\n" in card.text
    )
    assert '"a text to classify", "the second text of a pair"' in card.text


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("language", "jp", "ISO 639"),
        ("language", "zh-CN", "did you mean zh"),
        ("language", "English", "ISO 639"),
        ("license", "Apache-2.0", "did you mean apache-2.0"),
        ("license", "proprietary", "or other"),
        ("datasets", "STS-B, scored pairs", "--dataset_title"),
        ("datasets", "datasets/me/reviews", "--dataset_title"),
    ],
)
def test_metadata_that_the_hub_refuses_are_refused_before_the_training(option, value, said):
    with pytest.raises(InputError, match=f"--{option} {value}: .*{said}"):
        PublishingOptions(**{option: value if option == "license" else [value]})


def test_metadata_that_the_hub_takes():
    for path in CARDS:
        data = ModelCard.load(path).data
        PublishingOptions(
            license=data.license, language=data.language, datasets=data.datasets or []
        )
    PublishingOptions(language=["zh", "yue", "multilingual", "code"], license="openrail++")


def test_each_metric_names_the_data_it_was_measured_on(tmp_path, monkeypatch):
    """Held-out rows are from the training file. Nothing in the metadata is null."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test.jsonl").write_text("{}")
    measured = {split: {"loss": 1.0, "accuracy": 0.5} for split in ("validation", "test")}
    options = ["--test_file", "test.jsonl", "--output_dir", "m", "--language", "en"]
    results = {"metrics": measured, "rows": {"train": 9, "validation": 1, "test": 2}}
    card = card_of(tmp_path, results, "classify", *options)
    _, entries = model_index_to_eval_results(card.data.to_dict()["model-index"])
    found = {entry.dataset_split: (entry.dataset_name, entry.metric_value) for entry in entries}
    assert found == {"validation": ("data.jsonl", 0.5), "test": ("test.jsonl", 0.5)}
    assert "null" not in card.data.to_yaml() and card.data.language == ["en"]
