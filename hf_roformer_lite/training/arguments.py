"""Options of `roformer-lite train`: what the data, the model, the training and the card are, as dataclasses.

`HfArgumentParser` turns every field into an option. Those of one task alone (columns, lengths) stand with the task.
"""

import difflib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments
from transformers.configuration_utils import PreTrainedConfig

from ..errors import InputError
from ..model.configuration_roformer_lite import RoFormerLiteConfig


@dataclass
class DataArguments:
    """Where the examples come from."""

    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Training data: .tsv, .csv, .jsonl or .txt, also .gz; several are read one after another."},
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Data to watch during training."})
    test_file: list[str] | None = field(default=None, metadata={"help": "Data for the final figures."})
    validation_fraction: float = field(
        default=0.0,
        metadata={
            "help": "Without validation data: hold this share of the training data back (0.05 is one row in twenty)."
        },
    )
    column_names: list[str] | None = field(
        default=None, metadata={"help": "Names of the columns of .tsv and .csv files that have no header line."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "A dataset of the Hub, in place of files."})
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "Its configuration, where it has several."}
    )
    train_split: str = field(default="train", metadata={"help": "Its split to train on."})
    validation_split: str = field(default="validation", metadata={"help": "Its split to watch, used if it exists."})
    test_split: str = field(default="test", metadata={"help": "Its split for the final figures, used if it exists."})

    def __post_init__(self):
        if (self.train_file is None) == (self.dataset_name is None):
            raise InputError("give either --train_file or --dataset_name")
        if not 0 <= self.validation_fraction < 1:
            raise InputError(f"--validation_fraction={self.validation_fraction} must be at least 0 and below 1")


@dataclass
class ModelArguments:
    """Which model and tokenizer."""

    size: Literal["tiny", "mini", "small", "base"] = field(
        default="mini", metadata={"help": "Width and depth of a new model (128x2, 256x4, 512x4, 768x12)."}
    )
    config: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Fields of the configuration in place of the preset's: name=value, as hidden_dropout=0.3; for "
            "seq2seq encoder.name=value and decoder.name=value set one side."
        },
    )
    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Start from these weights and their tokenizer instead of from scratch."}
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "A tokenizer to use. Default: train one on the training data."}
    )
    vocab_size: int = field(default=8192, metadata={"help": "Size of a new tokenizer's vocabulary."})
    tokenizer_algorithm: Literal["bpe", "unigram", "wordpiece"] = field(
        default="bpe", metadata={"help": "Kind of a new tokenizer; bpe and unigram give any text back exactly."}
    )
    tokenizer_min_frequency: int = field(
        default=2, metadata={"help": "How often a piece must occur in the training data to enter the vocabulary."}
    )


@dataclass
class CardArguments:
    """What the model card says besides the measured results, and what goes to the Hub with it."""

    title: str | None = field(
        default=None, metadata={"help": "Title of the model card. Default: name of the directory."}
    )
    language: list[str] = field(default_factory=list, metadata={"help": "Language codes of the card, as en de."})
    license: str | None = field(default=None, metadata={"help": "Licence of the model, as apache-2.0 or cc-by-4.0."})
    dataset_title: str | None = field(
        default=None, metadata={"help": "How the card names the data. Default: the file names."}
    )
    datasets: list[str] = field(
        default_factory=list, metadata={"help": "Names of the data on the Hub, where the files are a copy of them."}
    )
    limitations: str | None = field(
        default=None, metadata={"help": "A sentence on what the model should not be used for."}
    )
    remote_code: bool = field(
        default=False,
        metadata={"help": "Save the package's code too, for those who have not installed it (trust_remote_code)."},
    )


@dataclass
class LiteTrainingArguments(TrainingArguments):
    """transformers' `TrainingArguments` with defaults for small models from scratch, and four options more.

    A new small model wants a learning rate ten times that of fine-tuning, larger batches and more epochs;
    checkpoints and evaluation follow the epochs, whatever their length.
    """

    per_device_train_batch_size: int = field(default=32, metadata={"help": "Rows in a training batch on each device."})
    per_device_eval_batch_size: int = field(
        default=64, metadata={"help": "Rows in an evaluation batch on each device."}
    )
    learning_rate: float = field(default=5e-4, metadata={"help": "Peak of the learning rate."})
    warmup_steps: float = field(
        default=0.06, metadata={"help": "Steps of warm-up, or below 1 their share of the training."}
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay of AdamW."})
    num_train_epochs: float = field(default=10.0, metadata={"help": "Passes over the training data."})
    eval_strategy: str = field(
        default="epoch", metadata={"help": "When to evaluate on the validation data: no, steps, epoch."}
    )
    save_strategy: str = field(
        default="epoch", metadata={"help": "When to write a checkpoint: no, steps, epoch, best."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "How many checkpoints to keep."})
    logging_steps: float = field(default=50, metadata={"help": "Steps between two points of the loss curve."})
    logging_first_step: bool = field(
        default=True, metadata={"help": "Whether the first step is a point of the loss curve."}
    )
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "Experiment trackers, as tensorboard."}
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={"help": "Cap on the real tokens of a training batch on each device, in place of a number of rows."},
    )
    time_limit_minutes: float | None = field(
        default=None,
        metadata={
            "help": "Stop training after this time; the learning rate reaches its end by then. Data preparation and "
            "the final evaluation come on top."
        },
    )
    ema_decay: float | None = field(
        default=None,
        metadata={"help": "Evaluate and save an exponential moving average of the weights with this decay, as 0.999."},
    )
    overwrite_output_dir: bool = field(
        default=False,
        metadata={"help": "Replace a finished model, and forget unfinished training with other options."},
    )
    keep_checkpoints: bool = field(
        default=False, metadata={"help": "Keep the directory of the checkpoints after the model is finished."}
    )

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("give --output_dir, the directory of the finished model")
        for name, low, high in (
            ("max_tokens_per_batch", 1, None),
            ("time_limit_minutes", 0, None),
            ("ema_decay", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None and (value < low or value == 0 or (high is not None and value >= high)):
                raise InputError(f"--{name}={value} must be above 0" + ("" if high is None else f" and below {high}"))
        if not torch.cuda.is_available():
            self.dataloader_pin_memory = False  # pinning has no use there, and torch warns about it
        super().__post_init__()


@dataclass
class LiteSeq2SeqTrainingArguments(LiteTrainingArguments, Seq2SeqTrainingArguments):
    """The same for seq2seq. `predict_with_generate` asks for translations at every evaluation; the final ones have
    them anyway."""

    def __post_init__(self):
        super().__post_init__()
        if self.metric_for_best_model and not self.metric_for_best_model.endswith("loss"):
            self.predict_with_generate = True  # BLEU, chrF and exact match need the translations


def parse_overrides(assignments: list[str], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """`["hidden_dropout=0.3", "decoder.num_hidden_layers=3"]` as fields of `config_class.from_preset`.

    Values are JSON (`0.3`, `true`, `null`, `["full_attention"]`); what is not JSON is text.

    Raises:
        InputError: for an assignment without `=`, and for a field that `config_class` does not have.
    """
    of_a_stack = set(RoFormerLiteConfig.__dataclass_fields__)
    sides = [side for side in ("encoder", "decoder") if side in config_class.__dataclass_fields__]
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        side, dot, own = name.rpartition(".")
        valid = of_a_stack if dot else of_a_stack | set(config_class.__dataclass_fields__) - set(sides)
        if not equals or (dot and side not in sides) or own not in valid:
            close = difflib.get_close_matches(own, valid, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close and own not in valid else ""
            raise InputError(
                f"--config {assignment}: name=value with a field of {config_class.__name__} is needed{hint}"
            )
        if own == "vocab_size":
            raise InputError(f"--config {assignment}: the tokenizer determines it; use --vocab_size")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        (fields.setdefault(side, {}) if dot else fields)[own] = value
    return fields
