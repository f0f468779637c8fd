"""The comparison of positions, norms and gating: what each variant changes, and how the seeds are compared."""

import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import ablations  # noqa: E402

SIZE = ["--size", "tiny"]


@pytest.fixture
def text(tmp_path):
    """A file that names and options are checked against."""
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"house {n} of {n % 7} is {'red' if n % 3 else 'green'}" for n in range(300)), "utf-8")
    return path


def plan(text, task, words=(), **fields):
    options = ablations.Options(text.parent / "out", task, **fields)
    return ablations.plan_runs(options, ["--train_file", str(text), "--validation_fraction", "0.1", *words])


def test_what_the_default_has_is_turned_around(text):
    given = ["position_embedding_type=learned", "norm_type=rmsnorm", "gated_mlp=true", "intermediate_size=96"]
    _, configs = plan(text, "causal", SIZE, config=given, variants=["learned", "none", "layernorm", "ungated"])
    assert configs == {
        "default": given,
        "none": [*given, "position_embedding_type=none"],
        "layernorm": [*given, "norm_type=layernorm"],
        "ungated": [*given, "gated_mlp=false", "intermediate_size=144"],
    }
    _, configs = plan(
        text, "seq2seq", SIZE, config=["decoder.norm_placement=post"], variants=["pre-norm", "post-norm"]
    )
    assert [config[1:] for config in configs.values()] == [
        [],
        ["decoder.norm_placement=pre"],
        ["encoder.norm_placement=post"],
    ]


def test_differences_are_paired_by_seed():
    """Both variants vary by the seed alike, so that the differences vary less than the figures."""

    def runs(losses):
        of_split = {"validation": {"loss": 0.0, "accuracy": 0.5}}
        fixed = {"parameters": 7, "main_metric": "accuracy", "processor_minutes": 2.0}
        return [{**fixed, "metrics": {"validation": {**of_split["validation"], "loss": loss}}} for loss in losses]

    rows = ablations.summarise({"default": runs([1.0, 2.0, 3.0]), "none": runs([1.5, 2.75, 3.25])})
    assert rows["none"]["validation_loss"] == pytest.approx(
        {"mean": 2.5, "deviation": 0.901388, "difference": 0.5, "difference_deviation": 0.25}, rel=1e-6
    )
    assert rows["default"]["validation_loss"]["deviation"] == 1 and rows["none"]["processor_minutes"] == 2
    assert rows["none"]["validation_accuracy"]["difference_deviation"] == 0
    alone = ablations.summarise({"default": runs([1.0])})["default"]["validation_loss"]
    assert alone == {"mean": 1.0, "deviation": None, "difference": 0.0, "difference_deviation": None}
