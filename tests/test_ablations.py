"""The comparison of positions, norms and gating: each variant is what its name says, and differs in nothing else."""

import json
import sys

import pytest
import torch
from conftest import ROOT
from torch import nn

from roformer_lite.commands.train import parse_run
from roformer_lite.errors import InputError
from roformer_lite.tasks.registry import TASKS
from roformer_lite.train.models import parse_overrides

sys.path.insert(0, str(ROOT))

from benchmarks import ablations  # noqa: E402
from benchmarks.variants import VARIANTS  # noqa: E402

SIZE = ["--size", "tiny"]
FIELDS = {  # that differ from the default, those that follow from others too
    "sinusoidal": {"position_embedding_type", "rope_parameters"},
    "learned": {"position_embedding_type", "rope_parameters", "max_position_embeddings"},
    "none": {"position_embedding_type", "rope_parameters"},
    "post-norm": {"norm_placement", "final_norm"},
    "rmsnorm": {"norm_type"},
    "gated": {"gated_mlp", "intermediate_size"},
}
LONGEST = {"mlm": ["--block_size", "64"], "seq2seq": ["--max_source_length", "64", "--max_target_length", "48"]}


@pytest.fixture
def text(tmp_path):
    """A file that names and options are checked against; only the slow test reads it."""
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"house {n} of {n % 7} is {'red' if n % 3 else 'green'}" for n in range(300)), "utf-8")
    return path


def plan(text, task, words=(), **fields):
    options = ablations.Options(text.parent / "out", task, **fields)
    return ablations.plan_runs(options, ["--train_file", str(text), "--validation_fraction", "0.1", *words])


def make_models(text, task, words, **fields) -> dict[str, nn.Module]:
    """A model of each variant, from what `--config` of its training says."""
    typed, configs = plan(text, task, words, **fields)
    models = {}
    for variant, config in configs.items():
        own = ["--config", *config] if config else []
        options = parse_run(task, [*typed, *own, "--output_dir", str(text.parent / "model")])
        of_task = TASKS[task](options.data).model
        given = {**of_task.config_fields(), **parse_overrides(options.model.config, of_task.config_class)}
        torch.manual_seed(0)
        config = of_task.config_class.from_preset(options.model.size or "mini", vocab_size=500, **given)
        models[variant] = of_task.auto_model.from_config(config).eval()
    return models


def differences(one: dict, other: dict) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.mark.slow
@pytest.mark.parametrize("task", LONGEST)
def test_variants_are_what_their_names_say(task, text):
    models = make_models(text, task, [*SIZE, *LONGEST[task]])
    assert models.keys() == {"default", *FIELDS}
    sides = ("encoder", "decoder") if task == "seq2seq" else (None,)
    rows = dict(zip(sides, (64, 48), strict=False))
    sizes = {name: model.num_parameters() for name, model in models.items()}
    assert all(abs(size / sizes["default"] - 1) < 0.05 for size in sizes.values()), sizes
    for name, model in models.items():
        norms = {type(module) for module in model.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)}
        assert norms == {nn.RMSNorm if name == "rmsnorm" else nn.LayerNorm}
        parts = [module for part, module in model.named_modules() if part.split(".")[-1] == "mlp"]
        assert len(parts) == 2 * len(sides) and all((mlp.gate_proj is not None) == (name == "gated") for mlp in parts)
        tables = [module for part, module in model.named_modules() if part.endswith("position_embeddings")]
        assert [table.num_embeddings for table in tables] == (list(rows.values()) if name == "learned" else [])
        for side in sides:
            config, base = (getattr(models[of].config, side or "", models[of].config) for of in (name, "default"))
            assert differences(config.to_dict(), base.to_dict()) == FIELDS.get(name, set())
            assert name not in VARIANTS or VARIANTS[name].items() <= config.to_dict().items()


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


@pytest.mark.parametrize(
    ("words", "fields", "option"),
    [
        ([], {"variants": ["alibi"]}, "--variants alibi"),
        ([], {"config": ["hidden_size=31"]}, "hidden_size=31"),
        (["--time-limit-minutes", "1"], {}, "--time_limit_minutes"),
        (["--validation_fraction", "0"], {}, "--validation_fraction"),
    ],
)
def test_mistakes_are_refused_before_anything_is_trained(words, fields, option, text):
    with pytest.raises(InputError, match=option):
        plan(text, "mlm", words, **fields)
    assert not (text.parent / "out").exists()


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


@pytest.mark.slow
def test_what_was_measured_is_not_trained_again(text, tmp_path, monkeypatch):
    out = tmp_path / "out"
    words = ["--task", "mlm", "--out", str(out), "--train_file", str(text), "--test_file", str(text), *SIZE]
    words += "--validation_fraction 0.1 --vocab_size 300 --block_size 32 --line_by_line --max_steps 2".split()
    words += "--variants rope none --seeds 0".split()
    ablations.main(words)
    first = json.loads((out / "ablations-mlm.json").read_text("utf-8"))
    rows = first["contenders"]
    assert list(rows) == ["default", "none"] and rows["none"]["parameters"] == rows["default"]["parameters"]
    names = {"validation_loss", "validation_perplexity", "test_loss", "test_perplexity"}
    assert names < rows["none"].keys() and rows["none"]["validation_loss"]["difference"] != 0
    assert {path.name for path in (out / "runs").iterdir()} == {"default-0.json", "none-0.json"}

    monkeypatch.setattr(ablations, "train", lambda command: pytest.fail("trained again"))
    ablations.main(words)
    assert json.loads((out / "ablations-mlm.json").read_text("utf-8")) == first
    with pytest.raises(SystemExit, match="default-0.json is of another training"):
        ablations.main([*words, "--learning_rate", "1"])
