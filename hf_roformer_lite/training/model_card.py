"""The model card: metadata for the Hub, then the results, how to use the model, and how it was trained."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

if TYPE_CHECKING:
    from .options import TrainOptions
    from .results import Run

_LIMITATIONS = "A small model, suited only to text like that it was trained on. Check its output before relying on it."
TEMPLATE = Path(__file__).with_name("model_card_template.md.jinja")

# The Hub's names of our metrics, where it has one.
_HUB_METRICS = {
    "bleu": "bleu",
    "chrf": "chrf",
    "exact_match": "exact_match",
    "macro_f1": "f1",
    "f1": "f1",
    "mse": "mse",
}


def write_model_card(results: dict[str, Any], run: "Run", folder: Path) -> None:
    """Write `README.md` into `folder`.

    Args:
        results: The contents of `results.json`, where every figure of the card comes from.
        run: The finished training.
        folder: Where the model is being saved.
    """
    options, task = run.options, run.task
    model_id, dataset = _model_id(options), _dataset_title(options)
    card = ModelCard.from_template(
        _metadata(results, run),
        template_path=str(TEMPLATE),
        title=options.card.title or model_id,
        summary=f"`{type(run.model).__name__}` with {results['parameters']:,} parameters: "
        f"{task.summary.partition(':')[0]}.",
        results=results,
        metrics=results["metrics"],
        metric_names=list(next(iter(results["metrics"].values()), {})),
        metric_notes=task.metric_notes(run.model),
        snippet=task.snippet(model_id, run.example),
        command=f"echo {shlex.quote(task.example_line(run.example))} | roformer-lite predict {shlex.quote(model_id)}",
        remote_code=getattr(run.model, "remote_code", False),
        base=" and ".join(options.model.pretrained),
        dataset_title=dataset,
        limitations=options.card.limitations or _LIMITATIONS,
    )
    card.save(folder / "README.md")


def _metadata(results: dict[str, Any], run: "Run") -> ModelCardData:
    """What the Hub reads: the block of YAML at the top of the card."""
    options, task = run.options, run.task
    hub_datasets = options.card.datasets or ([options.data.dataset_name] if options.data.dataset_name else [])
    figures = [
        (split, name, value)
        for split, metrics in results["metrics"].items()
        for name, value in metrics.items()
        if name != "loss"
    ]
    evaluations = [
        EvalResult(
            task_type=task.pipeline_tag,
            dataset_type=hub_datasets[0] if hub_datasets else "text",
            dataset_name=_dataset_title(options),
            dataset_split=split,
            metric_type=_HUB_METRICS.get(name, name),
            metric_name=name,
            metric_value=round(value, 4),
        )
        for split, name, value in figures
    ]
    return ModelCardData(
        language=options.card.language or None,
        license=options.card.license,
        library_name="transformers",
        pipeline_tag=task.pipeline_tag,
        tags=["roformer-lite", "rope", task.name],
        datasets=hub_datasets or None,
        base_model=options.model.model_name_or_path,
        metrics=sorted({_HUB_METRICS.get(name, name) for _, name, _ in figures}) or None,
        model_name=options.card.title or _model_id(options),
        eval_results=evaluations or None,
    )


def _model_id(options: "TrainOptions") -> str:
    return options.training.hub_model_id or options.output_dir.name


def _dataset_title(options: "TrainOptions") -> str:
    file_names = ", ".join(Path(path).name for path in options.data.train_file or [])
    return options.card.dataset_title or options.data.dataset_name or file_names
