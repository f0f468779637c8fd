"""The finished model directory: weights, tokenizer, card, loss curve and results, saved as a whole,
and uploaded."""

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import TrainingArguments

from hf_roformer_lite.model.hub import RemoteCode

from ..answers import open_model
from ..errors import InputError
from ..evaluate.confusion_picture import draw_reliability
from ..evaluate.evaluation import Evaluation, evaluate
from ..options.common import PublishingOptions
from ..options.run import Run
from ..output import RESULTS_FILE, complete_directory, write_json
from .model_card import write_model_card
from .results import RELIABILITY_FILE, FinishedTraining, print_summary, summarise
from .training_directory import TrainingDirectory

CURVE_FILE = "loss_curve.png"
# The Trainer writes the logs of TensorBoard into this folder; the Hub shows them.
TENSORBOARD_LOGS = "runs"


def save_finished_model(finished: FinishedTraining, directory: TrainingDirectory) -> dict[str, Any]:
    """Save the model, evaluate the saved model, write results and card, and remove the
    checkpoints. The directory of the model is created only when it is complete.

    Args:
        finished: The training.
        directory: The directory of its checkpoints.

    Returns:
        The contents of `results.json`.
    """
    run = finished.run
    recipe = finished.recipe
    # The Trainer turns the cache off for training.
    finished.model.config.use_cache = True
    with complete_directory(
        directory.run.output_dir, overwrite=run.training.overwrite_output_dir
    ) as folder:
        for part in (finished.model, recipe.tokenizer):
            # A stock tokenizer needs no code.
            if run.card.remote_code and isinstance(part, RemoteCode):
                part.remote_code = True
            part.save_pretrained(folder)
        recipe.save_further_files(folder)
        evaluations = measure_saved_model(finished, folder)
        state = finished.trainer.state
        if state.global_step:
            draw_loss_curve(state.log_history, folder / CURVE_FILE, finished.chosen_step)
        if evaluations and evaluations[-1].scores is not None:
            last = evaluations[-1]
            draw_reliability(last.scores, last.right, folder / RELIABILITY_FILE)
        results = summarise(finished, evaluations)
        run.save(folder)
        write_model_card(results, finished, folder)
        write_json(folder / RESULTS_FILE, results)
        logs = Path(finished.trainer.args.output_dir) / TENSORBOARD_LOGS
        if logs.is_dir():
            shutil.copytree(logs, folder / TENSORBOARD_LOGS)
    if not run.training.keep_checkpoints:
        directory.clear()
    return results


def measure_saved_model(finished: FinishedTraining, folder: Path) -> list[Evaluation]:
    """Evaluate the model in `folder` in the same way as the command `evaluate`.

    The validation data come first because they also determine a threshold for scores, and because a
    part of the model may then be fitted to their rows. The test data measure the final model.
    """
    recipe = finished.recipe
    args = finished.trainer.args
    evaluations = []
    saved = None
    for split in ("validation", "test"):
        if split not in finished.rows:
            continue
        if saved is None:
            results = {"task": recipe.name, "settings": recipe.settings()}
            write_json(folder / RESULTS_FILE, results)
            saved = open_model(folder, device=str(args.device))
        evaluation = evaluate(
            saved=saved,
            split=split,
            rows=recipe.rows_to_measure(finished.rows[split], finished.encoded[split]),
            batch_size=args.per_device_eval_batch_size,
            seed=args.seed,
        )
        evaluations.append(evaluation)
        if split == "validation":
            recipe.choose_threshold(evaluation.scores, evaluation.right)
            if recipe.learn_validation_rows(finished.trainer, finished.encoded):
                finished.model.save_pretrained(folder)
                saved = None
    return evaluations


def draw_loss_curve(history: list[dict[str, float]], path: Path, chosen_step: int | None) -> None:
    """Plot training and validation loss against the step.

    Args:
        history: `log_history` of a `TrainerState`.
        path: The PNG file to write.
        chosen_step: The step of the checkpoint that is kept, which a line marks, if it is known.
    """
    # Unlike pyplot, this class needs no display and keeps no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label in (("loss", "training"), ("eval_loss", "validation")):
        steps = [entry["step"] for entry in history if key in entry]
        losses = [entry[key] for entry in history if key in entry]
        if steps:
            marker = "." if len(steps) < 30 else None
            axes.plot(steps, losses, label=label, marker=marker)
    if chosen_step is not None:
        axes.axvline(chosen_step, linestyle="--", color="gray", label="the model that is kept")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def create_repository(card: PublishingOptions, args: TrainingArguments, name: str) -> None:
    """Create the repository to upload to, unless it exists, and add the owner to
    `card.hub_model_id`.

    This is called before the training, so that a missing login is reported at once and the card can
    name the repository.

    Raises:
        InputError: if the Hub refuses.
    """
    api = HfApi()
    wanted = card.hub_model_id or name
    try:
        repo = api.create_repo(wanted, private=args.hub_private_repo, exist_ok=True)
        if args.hub_revision:
            api.create_branch(repo.repo_id, branch=args.hub_revision, exist_ok=True)
    # Without a connection, the error depends on the HTTP library of huggingface_hub.
    except Exception as error:
        raise InputError(
            f"--push_to_hub: no repository {wanted} (--hub_model_id): {error}"
        ) from error
    card.hub_model_id = repo.repo_id


def publish(results: dict[str, Any], run: Run) -> None:
    """Print a summary, and upload the finished model if requested.

    Raises:
        InputError: if the upload fails. The model is complete in its directory.
    """
    print_summary(results, run.output_dir)
    if not run.card.push_to_hub:
        return
    repository = run.card.hub_model_id
    revision = run.training.training_arguments.get("hub_revision")
    try:
        commit = HfApi().upload_folder(
            repo_id=repository,
            folder_path=run.output_dir,
            commit_message="Upload the trained model",
            revision=revision,
        )
    except Exception as error:
        raise InputError(
            f"--push_to_hub: the model is finished in {run.output_dir}, but its upload failed "
            f"({error}); upload it with `hf upload {repository} {run.output_dir}`"
        ) from error
    print(f"Uploaded to {repository}: {commit.commit_url}")
