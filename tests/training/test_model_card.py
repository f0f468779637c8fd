"""The measured cards, as the Hub and a shell read them."""

import json
import re
import shlex

import pytest
from conftest import ROOT
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from hf_roformer_lite.training.tasks import TASKS

CARDS = sorted((ROOT / "model_cards").glob("*/README.md"))


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_measured_card(path):
    """Metadata that huggingface_hub's own classes read and write again unchanged, with the figures of results.json."""
    card = ModelCard.load(path)
    data, results = card.data, json.loads(path.with_name("results.json").read_text("utf-8"))
    task = TASKS[results["task"]]
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", task.pipeline_tag)
    assert data.language and {"roformer-lite", "rope", task.name} <= set(data.tags)
    assert ModelCardData(**data.to_dict()).to_yaml() == data.to_yaml() == card.content.split("---\n")[1].rstrip()

    name, evaluations = model_index_to_eval_results(data.to_dict()["model-index"])
    assert name == path.parent.name and evaluations == data.eval_results
    assert {(result.dataset_split, result.metric_name): result.metric_value for result in evaluations} == {
        (split, metric): round(value, 4)
        for split, metrics in results["metrics"].items()
        for metric, value in metrics.items()
        if metric != "loss"
    }
    assert {result.metric_type for result in evaluations} == set(data.metrics)
    assert {result.dataset_type for result in evaluations} == set(data.datasets or ["text"])

    assert results["command"] in card.text and f"| parameters | {results['parameters']:,} |" in card.text
    assert all(f"| {setting} | {value} |" in card.text for setting, value in results["training"]["arguments"].items())
    (image,) = re.findall(r"!\[.*\]\((.*)\)", card.text)
    assert path.with_name(image).read_bytes().startswith(b"\x89PNG")
    assert len(card.text.partition("## Limitations")[2].strip()) > 40


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.parent.name)
def test_code_of_measured_card(path):
    """The Python is valid, and the shell gives `predict` the very line that the Python has."""
    blocks = re.findall(r"```(\w+)\n(.*?)\n```", path.read_text("utf-8"), re.DOTALL)
    (snippet,) = [code for language, code in blocks if language == "python"]
    compile(snippet, str(path), "exec")
    (command,) = [code for language, code in blocks if code.startswith("echo ")]
    _, line, *rest = shlex.split(command)
    assert rest == ["|", "roformer-lite", "predict", path.parent.name]
    assert json.dumps(line, ensure_ascii=False) in snippet
