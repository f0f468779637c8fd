"""The model card: metadata for the Hub, then the results, how to use the model, and how it was
trained."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from ..errors import is_hub_name
from ..measuring.metrics import ByLabel
from ..options.run import Run
from .results import FinishedTraining, comparison_table, not_worse, predict_command, seeds_sentence

LIMITATIONS = (
    "A small model, suited only to text like its training data. Check its output before relying on "
    "it."
)
TEMPLATE = Path(__file__).with_name("model_card_template.md.jinja")
CODE_TEMPLATE = Path(__file__).with_name("model_card_code.md.jinja")
SEEDS_TEMPLATE = Path(__file__).with_name("model_card_seeds.md.jinja")
# If there are more labels, the card only shows the metrics of the worst ones.
MAX_LABELS = 30
# The Hub's names for metrics, if they differ from the names in this program.
HUB_METRICS = {"macro_f1": "f1"}


def write_model_card(results: dict[str, Any], finished: FinishedTraining, folder: Path) -> None:
    """Write `README.md` into `folder`.

    The card is meant for the public: it contains no path of this machine, and no row of the data
    unless `--card_example` requests one.

    Args:
        results: The contents of `results.json`, which contains all metrics of the card.
        finished: The training.
        folder: The directory in which the model is being saved.
    """
    run = finished.run
    recipe = finished.recipe
    model_id = _model_id(run)
    example = finished.example(from_data=run.card.card_example)
    tokenizer = finished.start.tokenizer
    line = recipe.example_line(example, tokenizer)
    has_own_class = finished.start.has_own_class
    class_name = type(finished.model).__name__
    task = recipe.summary.partition(":")[0]
    code = Template(CODE_TEMPLATE.read_text("utf-8"), trim_blocks=True).render(
        recipe=recipe,
        has_own_class=has_own_class,
        model_id=model_id,
        example=example,
        given=recipe.input_of_row(example),
        line=line,
        # Text as a Python literal in double quotes, with characters beyond ASCII kept readable.
        quoted=partial(json.dumps, ensure_ascii=False),
    )
    card = ModelCard.from_template(
        _metadata(results, finished),
        template_path=str(TEMPLATE),
        title=_title(run),
        summary=f"`{class_name}` with {results['parameters']:,} parameters: {task}.",
        results=results,
        comparison=comparison_table(results),
        not_worse=not_worse(results),
        by_label=_shown_labels(results["by_label"]),
        package=recipe.package if has_own_class else recipe.library,
        snippet=code.rstrip(),
        command=predict_command(line, model_id),
        remote_code=getattr(finished.model, "remote_code", False),
        base=_shown_base(run.model.model_name_or_path),
        dataset_title=_dataset_title(run, "train"),
        limitations=run.card.limitations or LIMITATIONS,
    )
    card.save(folder / "README.md")


def add_seeds(results: dict[str, Any], folder: Path) -> None:
    """Add the results of all seeds to the card of one of them in `folder`."""
    section = Template(SEEDS_TEMPLATE.read_text("utf-8"), keep_trailing_newline=True).render(
        results=results, seeds=results["seeds"], sentence=seeds_sentence(results)
    )
    path = folder / "README.md"
    before, heading, after = path.read_text("utf-8").partition("\n## How to use it\n")
    path.write_text(f"{before}\n{section}{heading}{after}", "utf-8")


def _shown_base(name: str | None) -> str:
    """The name of a model that the training started from, without the path of its directory; empty
    if there is none."""
    if name is None:
        return ""
    return name if is_hub_name(name) else Path(name).name or "another model"


def _metadata(results: dict[str, Any], finished: FinishedTraining) -> ModelCardData:
    """The metadata for the Hub, which form the YAML block at the top of the card."""
    run = finished.run
    recipe = finished.recipe
    tags = [recipe.name]
    if finished.start.has_own_class:
        tags = ["roformer-lite", recipe.name]
    base = run.model.model_name_or_path
    evaluations = _eval_results(results, finished)
    return ModelCardData(
        language=run.card.language or None,
        license=run.card.license,
        library_name=recipe.library,
        pipeline_tag=recipe.pipeline_tag,
        tags=tags,
        datasets=_hub_datasets(run) or None,
        base_model=base if base and is_hub_name(base) else None,
        metrics=sorted({result.metric_type for result in evaluations}) or None,
        model_name=_title(run),
        eval_results=evaluations or None,
    )


def _eval_results(results: dict[str, Any], finished: FinishedTraining) -> list[EvalResult]:
    datasets = _hub_datasets(finished.run)
    # Cross-validation measures other models than the one that is saved.
    others = {finished.cross_validated.split} if finished.cross_validated else set()
    return [
        EvalResult(
            task_type=finished.recipe.pipeline_tag,
            dataset_type=datasets[0] if datasets else "text",
            dataset_name=_dataset_title(finished.run, split),
            dataset_config=finished.run.data.dataset_config_name,
            dataset_split=split,
            metric_type=HUB_METRICS.get(name, name),
            metric_name=name,
            metric_value=round(value, 4),
        )
        for split, metrics in results["metrics"].items()
        for name, value in metrics.items()
        if name != "loss" and split not in others
    ]


def _hub_datasets(run: Run) -> list[str]:
    """The names of the datasets on the Hub: the given ones, or the dataset that was read."""
    if run.card.datasets:
        return run.card.datasets
    name = run.data.dataset_name
    if name is None or not is_hub_name(name):
        return []
    return [name]


def _repository(run: Run) -> str | None:
    """The repository to which the model is uploaded; None if it is not uploaded."""
    return run.card.hub_model_id if run.card.push_to_hub else None


def _model_id(run: Run) -> str:
    """The name by which a reader of the card loads the model: the repository, or the directory in
    the command."""
    repository = _repository(run)
    if repository:
        return repository
    if run.output_dir.is_absolute():
        return run.output_dir.name
    return str(run.output_dir)


def _title(run: Run) -> str:
    return run.card.title or _repository(run) or run.output_dir.name


def _dataset_title(run: Run, split: str) -> str:
    """The name of the data of a split. Held-out rows are from the training files."""
    name = run.data.dataset_name
    if name is not None and not is_hub_name(name):
        name = Path(name).name
    files = getattr(run.data, f"{split}_file") or run.data.train_file or []
    file_names = [Path(path).name for path in files]
    return run.card.dataset_title or name or ", ".join(file_names)


def _shown_labels(by_label: dict[str, ByLabel]) -> dict[str, Any] | None:
    """The metrics of each label on the test data or, if there are none, on the validation data;
    None without labels. If there are many labels, only those with the lowest F1 are shown."""
    if not by_label:
        return None
    split, metrics = list(by_label.items())[-1]
    shown = list(metrics)
    if len(metrics) > MAX_LABELS:
        occurring = [label for label in metrics if metrics[label]["support"]]
        shown = sorted(occurring, key=lambda label: metrics[label]["f1"])[:MAX_LABELS]
    return {
        "split": split,
        "number": len(metrics),
        "metrics": {label: metrics[label] for label in shown},
    }
