"""The finished model directory: weights, tokenizer, card, loss curve and results, saved as a whole."""

import json
import time
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.model.configuration_roformer_lite import RemoteCode

from ..output_directory import RESULTS_FILE, complete_directory
from .hub_upload import upload
from .loss_curve import draw_loss_curve
from .model_card import write_model_card
from .options import TrainOptions
from .results import Run, print_summary, summarise
from .resume import clear_training_directory, run_id

CURVE_FILE = "loss_curve.png"


def save_finished_model(run: Run, started: float) -> dict[str, Any]:
    """Save everything at once, and remove the checkpoints.

    Args:
        run: The finished training.
        started: When the command began, by `time.monotonic`.

    Returns:
        The contents of `results.json`.
    """
    options, args = run.options, run.options.training
    run.model.config.use_cache = True  # the Trainer turns it off for training
    with complete_directory(options.model_dir) as folder:
        for part in (run.model, run.tokenizer):
            _save(part, folder, with_code=args.remote_code)
        run.task.save_beside(folder)
        draw_loss_curve(run.history, folder / CURVE_FILE, run.chosen_step)
        results = summarise(run, run.earlier_seconds + time.monotonic() - started)
        results["training"]["id"] = run_id(Path(args.output_dir))
        write_model_card(results, run, folder)
        write_results(results, folder)
    if not args.keep_checkpoints:
        clear_training_directory(Path(args.output_dir))
    return results


def publish(results: dict[str, Any], options: TrainOptions) -> None:
    """Upload the model in `options.output_dir` if asked for, and print a summary."""
    if options.push_to_hub:
        upload(options)
    print_summary(results, options.output_dir)


def write_results(results: dict[str, Any], folder: Path) -> None:
    """Write `results.json`, which says that the model in `folder` is complete."""
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False) + "\n"  # JSON has no NaN
    (folder / RESULTS_FILE).write_text(text, "utf-8")


def _save(part: PreTrainedModel | PreTrainedTokenizerBase, folder: Path, with_code: bool) -> None:
    if with_code and isinstance(part, RemoteCode):  # a stock tokenizer needs no code
        part.remote_code = True
    part.save_pretrained(folder)
