"""Makes the `TrainingArguments` of a run from the program's options, defaults for small models,
and the arguments in `--training_arguments`."""

from dataclasses import fields
from typing import Any, Literal, get_type_hints

import torch
from transformers import TrainingArguments

from hf_roformer_lite.conversion.checkpoint_files import reason

from ..errors import InputError, check_number
from ..measuring.metrics import LOWER_IS_BETTER
from ..options.run import Run
from ..options.values import typed_values
from .muon import MUON

MIN_EPOCHS = 3
MAX_EPOCHS = 20
# By default, the epochs of a training add up to about this many examples or tokens.
NUM_EXAMPLES = 300_000
NUM_TOKENS = 8_000_000
# The model is evaluated and saved after each epoch, regardless of its length. Nothing is sent to a
# tracker by default.
DEFAULTS = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 2,
    # A training logs 20 losses.
    "logging_steps": 0.05,
    "report_to": "none",
    # The count of early stopping and the clock go on when a training continues.
    "restore_callback_states_from_checkpoint": True,
    # The trainer sets this number once the data are known.
    "num_train_epochs": float(MAX_EPOCHS),
}


def make_training_arguments(run: Run, kind: type[TrainingArguments]) -> TrainingArguments:
    """Make the arguments of the trainer before any data are read. Names and types are checked here,
    and transformers checks the values.

    Args:
        run: The run with its defaults filled in.
        kind: `TrainingArguments` or a subclass.

    Raises:
        InputError: for arguments that transformers does not have or does not accept.
    """
    options = run.training
    values: dict[str, Any] = dict(DEFAULTS)
    for name, value in vars(options).items():
        if name in kind.__dataclass_fields__ and value is not None:
            values[name] = value
    values |= options.training_arguments
    values["output_dir"] = str(run.checkpoints)
    # Without an accelerator, transformers only accepts bfloat16 together with `use_cpu`, and
    # accelerate only then makes several processes one group.
    values["use_cpu"] = options.use_cpu or not torch.accelerator.is_available()
    if options.optim == MUON:
        # The trainer takes the matrices of the layers out of this optimizer.
        values["optim"] = "adamw_torch_fused"
    if values.get("metric_for_best_model") is not None:
        metric = str(values["metric_for_best_model"])
        values.setdefault("greater_is_better", is_greater_better(metric))
        if "predict_with_generate" in kind.__dataclass_fields__ and not metric.endswith("loss"):
            # BLEU, chrF and exact match need the generated text.
            values["predict_with_generate"] = True
    hints = get_type_hints(kind)
    literal: Any = Literal
    for option in fields(kind):
        if "choices" in option.metadata:
            hints[option.name] = literal[tuple(option.metadata["choices"])]
    try:
        args = kind(**typed_values(values, hints))
    # TrainingArguments reads files, imports libraries and checks devices, so any error may occur.
    except Exception as error:
        raise InputError(f"--training_arguments cannot be used: {reason(error)}") from error
    check_number(
        "training_arguments gradient_accumulation_steps",
        args.gradient_accumulation_steps,
        minimum=1,
    )
    if "load_best_model_at_end" not in values:
        # Every evaluated model is saved, whatever the strategies are, so the best one is kept.
        args.load_best_model_at_end = "no" not in (args.eval_strategy, args.save_strategy)
    return args


def is_greater_better(metric: str) -> bool:
    """Whether greater values of a metric are better."""
    name = metric.removeprefix("eval_")
    return not (name.endswith("loss") or name in LOWER_IS_BETTER)


def epochs_for(examples: int, tokens: float) -> float:
    """The default number of epochs: enough for 300,000 examples or, if the `tokens` of an epoch are
    not 0, for 8 million tokens, but at least 3 and at most 20.

    Early stopping ends a training that no longer improves. The bounds keep the schedule short.
    """
    enough = min(NUM_EXAMPLES // max(1, examples), NUM_TOKENS // max(1, tokens))
    return float(min(MAX_EPOCHS, max(MIN_EPOCHS, enough)))
