"""The finished model directory: weights, tokenizer, card and results, saved as a whole."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_roformer_lite.conversion.checkpoint_files import drop_lengths

from ..answers import SavedModel, open_model
from ..baseline.files import JoinedBaseline, load_joined, save_joined
from ..evaluation import evaluate
from ..measuring.reliability_picture import draw_reliability
from ..output import RESULTS_FILE, complete_directory, write_json
from .model_card import RELIABILITY_FILE, write_model_card
from .results import FinishedTraining, Measurements, summarise
from .training_directory import TrainingDirectory


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
            part.save_pretrained(folder)
        trained = finished.start.trained
        if trained is not finished.model:
            trained.save_pretrained(str(folder), create_model_card=False)
        measured = measure_saved_model(finished, folder)
        if measured.evaluations:
            draw_reliability(measured.evaluations[-1].outcomes, folder / RELIABILITY_FILE)
        results = summarise(finished, measured)
        run.save(folder)
        write_model_card(results, finished, folder)
        write_json(folder / RESULTS_FILE, results)
        # The Trainer writes the logs of TensorBoard into this folder; the Hub shows them.
        logs = Path(finished.trainer.args.output_dir) / "runs"
        if logs.is_dir():
            shutil.copytree(logs, folder / logs.name)
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
    recipe: Any = finished.recipe
    args = finished.trainer.args
    batch_size = args.per_device_eval_batch_size
    splits = {split: rows for split, rows in finished.start.rows.items() if split != "train"}
    found = Measurements(recipe)
    validated = finished.validated
    if validated is not None and validated.folds:
        found.evaluations.append(validated.evaluation(finished.start))
    if not splits and finished.joined is None:
        return found
    write_json(folder / RESULTS_FILE, {"task": recipe.name, "settings": recipe.settings()})
    saved = open_model(folder, device=str(args.device))
    final: JoinedBaseline | None = None
    validation = splits.get("validation")
    if finished.joined is not None:
        alone = saved.recipe.with_threshold(saved, validation, batch_size)
        found.settings_of_encoder = alone.settings()
        for split, rows in splits.items():
            prepared = alone.for_rows(saved, rows)
            measured = prepared.evaluate(saved, rows, batch_size, args.seed)
            found.parts.setdefault("its encoder alone", {})[split] = measured
        baseline = finished.joined["validation"]
        found.join = recipe.choose_join(saved, baseline, validation, batch_size)
        saved = with_baseline(saved, JoinedBaseline(baseline, found.join), folder)
        final = JoinedBaseline(finished.joined["test"], found.join)
    found.recipe = recipe.with_threshold(saved, validation, batch_size)
    settings = found.recipe.settings()
    tuned = type(recipe).of_model(saved.recipe.options, saved.model.config, settings)
    for split, rows in splits.items():
        prepared = tuned.for_rows(saved, rows)
        evaluation = evaluate(saved, prepared, split, rows, batch_size, args.seed)
        found.evaluations.append(evaluation)
        if split == "validation" and final is not None:
            saved = with_baseline(saved, final, folder)
    return found


def with_baseline(saved: SavedModel, joined: JoinedBaseline, folder: Path) -> SavedModel:
    """Save a baseline that joins the answer of the model in `folder`. Returns the model with the
    saved baseline."""
    save_joined(folder, joined)
    return replace(saved, joined=load_joined(folder, type(joined.model)))
