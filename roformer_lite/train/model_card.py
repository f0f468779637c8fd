"""The model card: metadata for the Hub, then the results, how to use the model, and how it was
trained."""

import shlex
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template
from transformers import PreTrainedConfig

from ..data.data_files import Row
from ..errors import is_hub_name
from ..evaluate.metrics import ByLabel
from ..recipes.base import Recipe
from ..run import Run
from .results import FinishedTraining, beside_table, seeds_sentence

_LIMITATIONS = "A small model, suited only to text like that it was trained on. Check its output before relying on it."
TEMPLATE = Path(__file__).with_name("model_card_template.md.jinja")
SEEDS_TEMPLATE = Path(__file__).with_name("model_card_seeds.md.jinja")
_MOST_LABELS = 30  # of which the card shows the metrics of every one
_BEST_AND_WORST = 10

_HUB_METRICS = {"macro_f1": "f1"}  # our names that the Hub has another for


def write_model_card(results: dict[str, Any], finished: FinishedTraining, folder: Path) -> None:
    """Write `README.md` into `folder`.

    The card is meant for everybody: it shows no row of the data unless `--card_example` asks for
    one, and no path of this machine.

    Args:
        results: The contents of `results.json`, where every metric of the card comes from.
        finished: The training.
        folder: Where the model is being saved.
    """
    run = finished.run
    recipe = finished.recipe
    model = finished.model
    model_id = _model_id(run)
    example = finished.example(from_data=run.card.card_example)
    line = recipe.example_line(example)
    teacher = getattr(run.data, "teacher", None)
    card = ModelCard.from_template(
        _metadata(results, finished, _widget(recipe, example)),
        template_path=str(TEMPLATE),
        title=_title(run),
        summary=f"`{type(model).__name__}` with {results['parameters']:,} parameters: "
        f"{recipe.summary.partition(':')[0]}.",
        results=results,
        metrics=results["metrics"],
        metric_names=list(next(iter(results["metrics"].values()), {})),
        metric_notes=results["notes"],
        beside=beside_table(results),
        by_label=_shown_labels(results["by_label"]),
        package=recipe.package if recipe.has_own_class else recipe.library,
        snippet=recipe.loading_code(model_id) + recipe.snippet(example),
        command=f"echo {shlex.quote(line)} | roformer-lite predict {shlex.quote(model_id)}",
        remote_code=getattr(model, "remote_code", False),
        base=" and ".join(map(_shown_base, run.model.pretrained)),
        begins_with_tokens=run.begins_with_teachers_tokens,
        teacher=_shown_base(teacher) if teacher else "",
        dataset_title=_dataset_title(run),
        one_of_several=finished.is_one_of_several,
        limitations=run.card.limitations or _LIMITATIONS,
    )
    card.save(folder / "README.md")


def add_seeds(results: dict[str, Any], folder: Path) -> None:
    """Add to the card of one of several trainings, in `folder`, what `results` say of all of
    them."""
    section = Template(SEEDS_TEMPLATE.read_text("utf-8"), keep_trailing_newline=True).render(
        results=results, seeds=results["seeds"], sentence=seeds_sentence(results)
    )
    path = folder / "README.md"
    before, heading, after = path.read_text("utf-8").partition("\n## How to use it\n")
    path.write_text(f"{before}\n{section}{heading}{after}", "utf-8")


def _shown_base(name: str) -> str:
    """A model that the training started from, without the path of a directory."""
    return name if is_hub_name(name) else Path(name).name or "another model"


def _widget(recipe: Recipe, example: Row) -> list[dict[str, Any]] | None:
    """The card's example as the Hub's page offers it to be tried, in the fields of its task; no
    page takes pairs."""
    if recipe.pipeline_tag == "sentence-similarity":
        source, *others = recipe.texts([example])
        return [{"source_sentence": source, "sentences": others}]
    line = recipe.example_line(example)
    if "\t" in line:
        return None
    mask = recipe.tokenizer.mask_token or "[MASK]"
    return [{"text": line.replace("[MASK]", mask)}]


def _metadata(
    results: dict[str, Any], finished: FinishedTraining, widget: list | None
) -> ModelCardData:
    """What the Hub reads: the block of YAML at the top of the card."""
    options = finished.run
    recipe = finished.recipe
    hub_datasets = options.card.datasets or [
        name for name in [options.data.dataset_name] if name is not None and is_hub_name(name)
    ]
    bases = [name for name in options.model.pretrained if is_hub_name(name)]
    values = [
        (split, name, value)
        for split, metrics in results["metrics"].items()
        for name, value in metrics.items()
        if name != "loss"
    ]
    evaluations = [
        EvalResult(
            task_type=recipe.pipeline_tag,
            dataset_type=hub_datasets[0] if hub_datasets else "text",
            dataset_name=_dataset_title(options),
            dataset_split=split,
            metric_type=_HUB_METRICS.get(name, name),
            metric_name=name,
            metric_value=round(value, 4),
        )
        for split, name, value in values
    ]
    return ModelCardData(
        language=options.card.language or None,
        license=options.card.license,
        library_name=recipe.library,
        pipeline_tag=recipe.pipeline_tag,
        tags=[*(_own_tags(finished.model.config) if recipe.has_own_class else []), recipe.name],
        datasets=hub_datasets or None,
        base_model=bases[0] if len(bases) == 1 else bases or None,
        metrics=sorted({_HUB_METRICS.get(name, name) for _, name, _ in values}) or None,
        model_name=_title(options),
        eval_results=evaluations or None,
        widget=widget,
    )


def _own_tags(config: PreTrainedConfig) -> list[str]:
    """Converted encoders often have learned positions."""
    stacks = [config.encoder, config.decoder] if config.is_encoder_decoder else [config]
    return [
        "roformer-lite",
        *(["rope"] if any(stack.position_embedding_type == "rope" for stack in stacks) else []),
    ]


def _model_id(options: Run) -> str:
    """What whoever reads the card loads the model by: the repository, or the directory as the
    command names it."""
    if options.card.push_to_hub:
        return options.card.hub_model_id
    return options.output_dir.name if options.output_dir.is_absolute() else str(options.output_dir)


def _title(options: Run) -> str:
    return options.card.title or (
        options.card.hub_model_id if options.card.push_to_hub else options.output_dir.name
    )


def _dataset_title(options: Run) -> str:
    name = options.data.dataset_name
    if name is not None and not is_hub_name(name):
        name = Path(name).name
    files = options.data.train_file or []
    file_names = ", ".join(Path(path).name for path in files)
    return options.card.dataset_title or name or file_names


def _shown_labels(by_label: dict[str, ByLabel]) -> dict[str, Any] | None:
    """The metrics by label of the test data, or without them the validation data, or None; with
    many labels those of the best and the worst."""
    if not by_label:
        return None
    split = "test" if "test" in by_label else next(iter(by_label))
    metrics, parts = by_label[split], {}
    if len(metrics) <= _MOST_LABELS:
        parts[""] = list(metrics)
    else:
        occurring = [label for label in metrics if metrics[label]["support"]]
        best_first = sorted(occurring, key=lambda label: -metrics[label]["f1"])
        parts[f"The {_BEST_AND_WORST} best of {len(metrics)} by F1:"] = best_first[:_BEST_AND_WORST]
        parts[f"The {_BEST_AND_WORST} worst:"] = best_first[-_BEST_AND_WORST:]
    return {"split": split, "metrics": metrics, "parts": parts}
