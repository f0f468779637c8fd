"""From a trained model to its finished directory: weights, tokenizer, card, loss curve, results; and the Hub."""

import json
import os
import platform
import shutil
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError
from ..model.remote_code import RemoteCodeMixin
from ..output_directory import RESULTS_FILE, complete_directory
from ..version import __version__
from .arguments import LiteTrainingArguments
from .loss_curve import draw_loss_curve
from .metrics import Metrics
from .model_card import write_model_card
from .tasks.base import Task

if TYPE_CHECKING:
    from .train import TrainOptions

CURVE_FILE = "loss_curve.png"


@dataclass
class Evaluation:
    """Final figures of one split."""

    split: str
    metrics: Metrics
    rows: int
    seconds: float


@dataclass
class Run:
    """A finished training with all that is known about it."""

    task: Task
    options: "TrainOptions"
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    history: list[dict[str, float]]
    steps: int
    epochs: float
    train_seconds: float
    rows: dict[str, int]
    example: dict[str, Any]  # a raw row, for the card
    evaluations: list[Evaluation]


def finish(run: Run, started: float) -> None:
    """Save everything in one go, remove the checkpoints, upload if asked for, and print a summary."""
    options, args = run.options, run.options.training
    with complete_directory(options.output_dir) as folder:
        _restore_config(run.model)
        for part in (run.model, run.tokenizer):
            _save(part, folder, options.card.remote_code)
        draw_loss_curve(run.history, folder / CURVE_FILE)
        results = summarise(run, time.monotonic() - started)
        write_model_card(results, run, folder)
        (folder / RESULTS_FILE).write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
    if not args.keep_checkpoints:
        shutil.rmtree(args.output_dir, ignore_errors=True)
    if options.push_to_hub:
        upload(run)
    print_summary(results, options.output_dir)


def summarise(run: Run, seconds: float) -> dict[str, Any]:
    """Everything measured, as `results.json` has it."""
    options, args = run.options, run.options.training
    return {
        "task": run.task.name,
        "command": options.command,
        "settings": run.task.settings(),
        "metrics": {evaluation.split: evaluation.metrics for evaluation in run.evaluations},
        "evaluation_seconds": {evaluation.split: round(evaluation.seconds, 1) for evaluation in run.evaluations},
        "rows": run.rows,
        "parameters": run.model.num_parameters(),
        "vocabulary": len(run.tokenizer),
        "training": {
            "steps": run.steps,
            "epochs": round(run.epochs, 2),
            "minutes": round(run.train_seconds / 60, 2),
            "whole_command_minutes": round(seconds / 60, 2),
            "arguments": _chosen_arguments(args),
        },
        "machine": _machine(args.world_size),
        "versions": {
            "hf_roformer_lite": __version__,
            **{name: version(name) for name in ("transformers", "torch", "tokenizers", "datasets", "accelerate")},
        },
    }


def _machine(world_size: int) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return {
        "device": device,
        "processes": world_size,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _chosen_arguments(args: Any) -> dict[str, Any]:
    """The training arguments that shape the result, in a fixed order."""
    names = (
        "learning_rate lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 max_grad_norm "
        "label_smoothing_factor per_device_train_batch_size gradient_accumulation_steps max_tokens_per_batch "
        "num_train_epochs max_steps time_limit_minutes ema_decay seed optim bf16 fp16 generation_num_beams"
    )
    values = {name: getattr(args, name, None) for name in names.split()}
    if args.max_tokens_per_batch:
        values["per_device_train_batch_size"] = None
    return {name: getattr(value, "value", value) for name, value in values.items() if value not in (None, False, -1)}


def _restore_config(model: PreTrainedModel) -> None:
    model.config.use_cache = True  # the Trainer turns it off for training


def _save(part: PreTrainedModel | PreTrainedTokenizerBase, folder: Path, with_code: bool) -> None:
    if with_code and isinstance(part, RemoteCodeMixin):  # a tokenizer of transformers' own needs no code
        part.remote_code = True
    part.save_pretrained(folder)


def create_repository(args: LiteTrainingArguments, name: str) -> None:
    """Make sure that there is a repository to upload to, and complete `args.hub_model_id` with its owner.

    Done before the training: a missing login shows at once, and the card can name the repository.

    Args:
        args: Where `hub_model_id` is, or is not, given.
        name: What to call it if not.

    Raises:
        InputError: when the Hub refuses.
    """
    api = HfApi(token=args.hub_token)
    try:
        repo = api.create_repo(args.hub_model_id or name, private=args.hub_private_repo, exist_ok=True)
        if args.hub_revision:
            api.create_branch(repo.repo_id, branch=args.hub_revision, exist_ok=True)
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError) as error:
        raise InputError(f"--push_to_hub: no repository {args.hub_model_id or name}: {error}") from error
    args.hub_model_id = repo.repo_id


def upload(run: Run) -> None:
    """Upload the finished directory."""
    args = run.options.training
    commit = HfApi(token=args.hub_token).upload_folder(
        repo_id=args.hub_model_id,
        folder_path=run.options.output_dir,
        commit_message="Upload the trained model",
        revision=args.hub_revision,
    )
    print(f"Uploaded to {args.hub_model_id}: {commit.commit_url}")


def print_summary(results: dict[str, Any], folder: Path) -> None:
    """A table of the final figures, and where things lie."""
    console = Console()
    if results["metrics"]:
        table = Table(title=f"{results['task']}: {results['parameters']:,} parameters")
        table.add_column("metric")
        for split in results["metrics"]:
            table.add_column(f"{split} ({results['rows'][split]:,})", justify="right")
        for name in next(iter(results["metrics"].values())):
            table.add_row(name, *(f"{metrics[name]:.4f}" for metrics in results["metrics"].values()))
        console.print(table)
    training = results["training"]
    console.print(
        f"{training['steps']:,} steps, {training['epochs']:g} epochs in {training['minutes']:g} minutes "
        f"({training['whole_command_minutes']:g} with everything)"
    )
    console.print(f"Model, tokenizer, card, loss curve and results: {folder}", soft_wrap=True)
    console.print(f"Use it: echo … | roformer-lite predict {folder}", soft_wrap=True)
