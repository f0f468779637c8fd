"""The model card: metadata for the Hub on top, then results, usage and training of the run that made the model."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

if TYPE_CHECKING:
    from .results import Run

_LIMITATIONS = (
    "A small model that knows the kind of text it was trained on and no other. Check its output before relying on it."
)
TEMPLATE = Path(__file__).with_name("model_card_template.md.jinja")

# How the Hub calls our metrics where it has a name for them.
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
        results: What `results.json` has; every figure of the card is from there.
        run: Task, options and tokenizer of the run.
        folder: Where the model is being saved.
    """
    options, task = run.options, run.task
    model_id = options.training.hub_model_id or options.output_dir.name
    file_names = ", ".join(Path(path).name for path in options.data.train_file or [])
    dataset = options.card.dataset_title or options.data.dataset_name or file_names
    hub_datasets = options.card.datasets or ([options.data.dataset_name] if options.data.dataset_name else [])
    data = ModelCardData(
        language=options.card.language or None,
        license=options.card.license,
        library_name="transformers",
        pipeline_tag=task.pipeline_tag,
        tags=["roformer-lite", "rope", task.name],
        datasets=hub_datasets or None,
        base_model=options.model.model_name_or_path,
        metrics=sorted(
            {
                _HUB_METRICS.get(name, name)
                for metrics in results["metrics"].values()
                for name in metrics
                if name != "loss"
            }
        )
        or None,
        model_name=options.card.title or model_id,
        eval_results=[
            EvalResult(
                task_type=task.pipeline_tag,
                dataset_type=hub_datasets[0] if hub_datasets else "text",
                dataset_name=dataset,
                dataset_split=split,
                metric_type=_HUB_METRICS.get(name, name),
                metric_name=name,
                metric_value=round(value, 4),
            )
            for split, metrics in results["metrics"].items()
            for name, value in metrics.items()
            if name != "loss"
        ]
        or None,
    )
    card = ModelCard.from_template(
        data,
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
        base=options.model.model_name_or_path,
        dataset_title=dataset,
        limitations=options.card.limitations or _LIMITATIONS,
    )
    card.save(folder / "README.md")
