"""The model card: metadata for the Hub, then the results, how to use the model, and how it was
trained."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from hf_roformer_lite.conversion.checkpoint_files import is_hub_name

from ..measuring.significance import SIGNIFICANCE_LEVEL
from ..options.run import Run
from .results import FinishedTraining, comparison_table, predict_command

TEMPLATE = Path(__file__).with_name("model_card_template.md.jinja")
CODE_TEMPLATE = Path(__file__).with_name("model_card_code.md.jinja")
SEEDS_TEMPLATE = Path(__file__).with_name("model_card_seeds.md.jinja")
# The picture of the scores, for tasks that have any.
RELIABILITY_FILE = "reliability.png"
# The Hub's names for metrics, if they differ from the names in this program.
HUB_METRICS = {"macro_f1": "f1"}


def write_model_card(results: dict[str, Any], finished: FinishedTraining, folder: Path) -> None:
    """Write `README.md` into `folder`.

    The card is meant for the public: it contains no path of this machine, and no row of the data.

    Args:
        results: The contents of `results.json`, which contains all metrics of the card.
        finished: The training.
        folder: The directory in which the model is being saved.
    """
    run = finished.run
    recipe = finished.recipe
    model_id = _title(run)
    line = results["example_line"]
    base = run.model.model_name_or_path
    has_own_class = finished.start.has_own_class
    code = Template(CODE_TEMPLATE.read_text("utf-8"), trim_blocks=True).render(
        recipe=recipe,
        settings=results["settings_of_encoder"] or results["settings"],
        has_own_class=has_own_class,
        model_id=model_id,
        example=recipe.neutral_example,
        given=recipe.input_of_row(recipe.neutral_example),
        line=line,
        # Text as a Python literal in double quotes, with characters beyond ASCII kept readable.
        quoted=partial(json.dumps, ensure_ascii=False),
    )
    card = ModelCard.from_template(
        _metadata(results, finished),
        template_path=str(TEMPLATE),
        title=model_id,
        class_name=type(finished.model).__name__,
        task=recipe.options_class.summary.partition(":")[0],
        results=results,
        comparison=comparison_table(results),
        significance_level=SIGNIFICANCE_LEVEL,
        reliability=RELIABILITY_FILE if (folder / RELIABILITY_FILE).is_file() else "",
        package=recipe.package if has_own_class else recipe.library,
        snippet=code.rstrip(),
        command=predict_command(line, model_id),
        remote_code=getattr(finished.model, "remote_code", False),
        # The path of a directory is not shown.
        base=base if base is None or is_hub_name(base) else Path(base).name or "another model",
        dataset_title=_dataset_title(run, "train"),
    )
    card.save(folder / "README.md")


def add_seeds(results: dict[str, Any], folder: Path) -> None:
    """Add the results of all seeds to the card of one of them in `folder`."""
    template = Template(SEEDS_TEMPLATE.read_text("utf-8"), keep_trailing_newline=True)
    section = template.render(seeds=results["seeds"])
    path = folder / "README.md"
    before, heading, after = path.read_text("utf-8").partition("\n## How to use it\n")
    path.write_text(f"{before}\n{section}{heading}{after}", "utf-8")


def _metadata(results: dict[str, Any], finished: FinishedTraining) -> ModelCardData:
    """The metadata for the Hub, which form the YAML block at the top of the card."""
    run = finished.run
    recipe = finished.recipe
    base = run.model.model_name_or_path
    evaluations = _eval_results(results, finished)
    return ModelCardData(
        language=run.card.language or None,
        license=run.card.license,
        library_name=recipe.library,
        pipeline_tag=recipe.pipeline_tag,
        tags=[*(["roformer-lite"] if finished.start.has_own_class else []), recipe.name],
        datasets=_hub_datasets(run) or None,
        base_model=base if base and is_hub_name(base) else None,
        metrics=sorted({result.metric_type for result in evaluations}) or None,
        model_name=_title(run),
        eval_results=evaluations or None,
    )


def _eval_results(results: dict[str, Any], finished: FinishedTraining) -> list[EvalResult]:
    datasets = _hub_datasets(finished.run)
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
        # Cross-validation measures other models than the one that is saved.
        if name != "loss" and split in ("validation", "test")
    ]


def _hub_datasets(run: Run) -> list[str]:
    """The names of the datasets on the Hub: the given ones, or the dataset that was read."""
    name = run.data.dataset_name
    if run.card.datasets or name is None or not is_hub_name(name):
        return run.card.datasets
    return [name]


def _title(run: Run) -> str:
    """The name by which a reader of the card loads the model: the repository, or the directory."""
    return run.card.hub_model_id or run.output_dir.name


def _dataset_title(run: Run, split: str) -> str:
    """The name of the data of a split. Held-out rows are from the training files."""
    name = run.data.dataset_name
    if name is not None and not is_hub_name(name):
        name = Path(name).name
    files = getattr(run.data, f"{split}_file") or run.data.train_file or []
    file_names = [Path(path).name for path in files]
    return run.card.dataset_title or name or ", ".join(file_names)
