"""The finished model directory: weights, tokenizer, card, loss curve and results, saved as a whole,
and uploaded."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import TrainingArguments

from hf_roformer_lite.conversion.checkpoint_files import drop_lengths
from hf_roformer_lite.model.hub import RemoteCode

from ..answers import SavedModel, open_model
from ..baseline.files import JoinedBaseline, load_joined, save_joined
from ..errors import InputError
from ..evaluation import evaluate
from ..measuring.confusion_picture import draw_reliability
from ..options.common import PublishingOptions
from ..options.run import Run
from ..output import RESULTS_FILE, complete_directory, write_json
from .model_card import write_model_card
from .results import RELIABILITY_FILE, FinishedTraining, Measurements, summarise
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
    # The Trainer turns the cache off for training.
    finished.model.config.use_cache = True
    drop_lengths(finished.start.tokenizer)
    with complete_directory(
        directory.run.output_dir, overwrite=run.training.overwrite_output_dir
    ) as folder:
        for part in (finished.model, finished.start.tokenizer):
            # A stock tokenizer needs no code.
            if run.card.remote_code and isinstance(part, RemoteCode):
                part.remote_code = True
            part.save_pretrained(folder)
        trained = finished.start.trained
        if trained is not finished.model:
            trained.save_pretrained(str(folder), create_model_card=False)
        measured = measure_saved_model(finished, folder)
        state = finished.trainer.state
        if state.global_step:
            draw_loss_curve(state.log_history, folder / CURVE_FILE)
        last = measured.evaluations[-1] if measured.evaluations else None
        if last is not None and last.scores is not None:
            draw_reliability(last.scores, last.right, folder / RELIABILITY_FILE)
        results = summarise(finished, measured)
        run.save(folder)
        write_model_card(results, finished, folder)
        write_json(folder / RESULTS_FILE, results)
        logs = Path(finished.trainer.args.output_dir) / TENSORBOARD_LOGS
        if logs.is_dir():
            shutil.copytree(logs, folder / TENSORBOARD_LOGS)
    if not run.training.keep_checkpoints:
        directory.clear()
    return results


def measure_saved_model(finished: FinishedTraining, folder: Path) -> Measurements:
    """Let the baseline join the answer of the model in `folder`, and evaluate the model in the same
    way as the command `evaluate`.

    The validation data come first because they also determine the weight of the baseline and a
    threshold for scores, and because the baseline may then learn their rows. The test data measure
    the final model.
    """
    recipe = finished.recipe
    args = finished.trainer.args
    batch_size = args.per_device_eval_batch_size
    splits = {
        split: recipe.rows_to_measure(finished.rows[split], finished.encoded[split])
        for split in ("validation", "test")
        if split in finished.rows
    }
    found = Measurements(recipe)
    if finished.cross_validated is not None:
        found.evaluations.append(finished.cross_validated)
    if not splits and finished.joined is None:
        return found
    write_json(folder / RESULTS_FILE, {"task": recipe.name, "settings": recipe.settings()})
    saved = open_model(folder, device=str(args.device))
    validation = splits.get("validation")
    if finished.joined is not None:
        of_encoder = saved.recipe.with_threshold(saved, validation, batch_size)
        for split, rows in splits.items():
            alone = of_encoder.for_rows(saved, rows)
            measured = alone.evaluate(saved, rows, batch_size, args.seed)
            found.parts.setdefault("its encoder alone", {})[split] = measured
        baseline = finished.joined.of_training
        found.join = recipe.choose_join(saved, baseline, validation, batch_size)
        saved = with_baseline(saved, JoinedBaseline(baseline, found.join), folder)
    found.recipe = recipe.with_threshold(saved, validation, batch_size)
    settings = found.recipe.settings()
    tuned = type(recipe).of_model(saved.recipe.options, saved.model.config, settings)
    saved = replace(saved, recipe=tuned)
    for split, rows in splits.items():
        prepared = saved.recipe.for_rows(saved, rows)
        evaluation = evaluate(saved, prepared, split, rows, batch_size, args.seed)
        found.evaluations.append(evaluation)
        if split == "validation" and finished.joined is not None:
            final = JoinedBaseline(finished.joined.final, found.join)
            saved = with_baseline(saved, final, folder)
    return found


def with_baseline(saved: SavedModel, joined: JoinedBaseline, folder: Path) -> SavedModel:
    """Save a baseline that joins the answer of the model in `folder`. Returns the model with the
    saved baseline."""
    save_joined(folder, joined)
    return replace(saved, joined=load_joined(folder, type(joined.model)))


def draw_loss_curve(history: list[dict[str, float]], path: Path) -> None:
    """Plot training and validation loss against the step.

    Args:
        history: `log_history` of a `TrainerState`.
        path: The PNG file to write.
    """
    # Unlike pyplot, this class needs no display and keeps no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for key, label in (("loss", "training"), ("eval_loss", "validation")):
        steps = [entry["step"] for entry in history if key in entry]
        losses = [entry[key] for entry in history if key in entry]
        if steps:
            axes.plot(steps, losses, label=label, marker=".")
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
        InputError: if the Hub does not allow it.
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


def upload(run: Run) -> str:
    """Upload the finished model to the Hub. Returns a sentence that says where it is.

    Raises:
        InputError: if the upload fails. The model is complete in its directory.
    """
    repository = run.card.hub_model_id
    revision = run.training.training_arguments.get("hub_revision")
    try:
        commit = HfApi().upload_folder(
            repo_id=repository,
            folder_path=run.output_dir,
            commit_message="Upload the trained model",
            revision=revision,
        )
    # The error depends on the HTTP library here, too, and the message has to say where the model is.
    except Exception as error:
        raise InputError(
            f"--push_to_hub: the model is finished in {run.output_dir}, but its upload failed "
            f"({error}); upload it with `hf upload {repository} {run.output_dir}`"
        ) from error
    return f"Uploaded to {repository}: {commit.commit_url}"
