"""Options of `roformer-lite train` that every task has, as dataclasses: data, model and training.

A parser makes an option of every field. Nothing here imports torch, so that `--help` and mistakes are answered at
once.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ..errors import LARGEST_BATCH, InputError, check_file, check_number
from ..output_place import check_place
from .tokenizer_arguments import NEW_TOKENIZER, TokenizerArguments, refuse_beside

_SEED, _LARGEST_SEED = 42, 2**32 - 1


@dataclass
class DataArguments:
    """Where the examples come from."""

    _argument_group_name: ClassVar[str] = "data"

    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Training data: .tsv, .csv, .jsonl or .txt, also .gz; several are read one after another."},
    )
    validation_file: list[str] | None = field(
        default=None, metadata={"help": "Validation data, measured during training and at the end."}
    )
    test_file: list[str] | None = field(default=None, metadata={"help": "Test data, measured only at the end."})
    validation_fraction: float | None = field(
        default=None,
        metadata={
            "help": "Without validation data: hold out this fraction of the training data (0.05 is one row in "
            "twenty). Default: 0.1, 2,000 rows at most, and none of fewer than 100 rows; 0 holds out nothing."
        },
    )
    column_names: list[str] | None = field(
        default=None, metadata={"help": "Names of the columns of .tsv and .csv files that have no header line."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "A dataset on the Hub, instead of files."})
    dataset_config_name: str | None = field(
        default=None, metadata={"help": "Configuration of that dataset, if it has several."}
    )
    train_split: str = field(default="train", metadata={"help": "Split of that dataset to train on."})
    validation_split: str = field(
        default="validation", metadata={"help": "Split of that dataset for validation, used if it exists."}
    )
    test_split: str = field(default="test", metadata={"help": "Split of that dataset for testing, used if it exists."})

    def __post_init__(self):
        if sum(value is not None for value in self.sources.values()) != 1:
            raise InputError(f"give either {' or '.join(self.sources)}")
        if self.validation_fraction is not None:
            check_number("validation_fraction", self.validation_fraction, at_least=0, below=1)
        if self.validation_fraction and self.validation_file:
            raise InputError(
                f"--validation_fraction {self.validation_fraction} has no effect beside --validation_file; leave out "
                "one of the two"
            )
        if self.dataset_name is not None and (self.validation_file or self.test_file):
            raise InputError("--validation_file and --test_file go with --train_file, not with --dataset_name")
        for option in ("train_file", "validation_file", "test_file"):
            for path in getattr(self, option) or ():
                check_file(option, path)

    @property
    def sources(self) -> dict[str, Any]:
        """The options that name the training data, of which one must be given."""
        return {"--train_file": self.train_file, "--dataset_name": self.dataset_name}


@dataclass
class ModelArguments(TokenizerArguments):
    """Which model and tokenizer."""

    _argument_group_name: ClassVar[str] = "model and tokenizer"

    size: Literal["tiny", "mini", "small", "base"] | None = field(
        default=None,
        metadata={"help": "Width and depth of a new model (128x2, 256x4, 512x4, 768x12). Default: mini."},
    )
    config: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Fields of the configuration that differ from those of the size, as name=value, for example "
            "hidden_dropout=0.3; with seq2seq, encoder.name=value and decoder.name=value set one of the two."
        },
    )
    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Start from these weights and their tokenizer instead of from scratch: a directory or a name on "
            "the Hub, of a model of this package or of one that it converts, such as BERT."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        if self.model_name_or_path is not None:
            refuse_beside({"size": self.size}, "--model_name_or_path", "which brings its own size")
            self.refuse_new_tokenizer("--model_name_or_path", "which brings its own tokenizer")
        self.has_size = self.size is not None
        self.size = self.size or "mini"
        for assignment in self.config:
            if "=" not in assignment:
                raise InputError(f"--config {assignment}: name=value is needed")

    @property
    def pretrained(self) -> list[str]:
        """The models whose weights the training starts from."""
        return [] if self.model_name_or_path is None else [self.model_name_or_path]


@dataclass
class Seq2SeqModelArguments(ModelArguments):
    """The same, and the stacks of a pair."""

    encoder_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Start from this encoder and its tokenizer; its head is left out. The decoder is new, of --size, "
            "and shares the encoder's table of tokens, unless --decoder_name_or_path is given."
        },
    )
    decoder_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Beside --encoder_name_or_path, start from this causal model, with the same vocabulary. Its "
            "cross-attention is new."
        },
    )

    def __post_init__(self):
        if self.encoder_name_or_path is not None:
            if self.model_name_or_path is not None:
                raise InputError("give either --model_name_or_path or --encoder_name_or_path")
            why = "which brings its own tokenizer"
            new = {name: getattr(self, name) for name in ("tokenizer", *NEW_TOKENIZER)}
            refuse_beside(new, "--encoder_name_or_path", why)
        if self.decoder_name_or_path is not None:
            if self.encoder_name_or_path is None:
                raise InputError("--decoder_name_or_path needs --encoder_name_or_path beside it")
            refuse_beside({"size": self.size}, "--decoder_name_or_path", "which brings its own size")
        super().__post_init__()

    @property
    def pretrained(self) -> list[str]:
        stacks = (self.encoder_name_or_path, self.decoder_name_or_path)
        return [*super().pretrained, *(name for name in stacks if name is not None)]


@dataclass
class OwnTrainingArguments:
    """Fields that the package adds to transformers' `TrainingArguments`, and those whose defaults it changes.

    A small new model needs a learning rate ten times that of fine-tuning, larger batches and more epochs. Checkpoints
    and evaluation follow the epochs, whatever their length.
    """

    _argument_group_name: ClassVar[str] = "training"

    output_dir: str | None = field(default=None, metadata={"help": "Directory of the finished model. Required."})
    overwrite_output_dir: bool = field(
        default=False,
        metadata={"help": "Replace a finished model, and discard an unfinished training with other options."},
    )
    num_train_epochs: float | None = field(
        default=None,
        metadata={
            "help": "Passes over the training data. Default: as many as show 300,000 examples, from 3 to 20; of "
            "fine-tuning 4."
        },
    )
    max_steps: int = field(default=-1, metadata={"help": "Number of training steps, instead of epochs."})
    time_limit_minutes: float | None = field(
        default=None,
        metadata={
            "help": "Stop training after this time, with the learning rate at the end of its schedule. Data "
            "preparation and the final evaluation come on top."
        },
    )
    per_device_train_batch_size: int = field(default=32, metadata={"help": "Rows in a training batch on each device."})
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={"help": "Limit on the real tokens in a training batch on each device, instead of a number of rows."},
    )
    per_device_eval_batch_size: int = field(
        default=64, metadata={"help": "Rows in an evaluation batch on each device."}
    )
    learning_rate: float = field(
        default=5e-4,
        metadata={
            "help": "Highest learning rate. Default of fine-tuning: 1e-4, and 3e-4 for models that this command has "
            "trained from scratch."
        },
    )
    warmup_steps: float = field(
        default=0.06,
        metadata={
            "help": "Steps of warm-up; a number below 1 is a fraction of the training. Default of fine-tuning: 0.1."
        },
    )
    weight_decay: float = field(default=0.01, metadata={"help": "Weight decay."})
    optim: str = field(
        default="adamw_torch_fused",
        metadata={
            "help": "The optimizer: one of transformers, or muon, torch's Muon for the matrices of the layers and "
            "AdamW for the rest; arguments of Muon, such as lr=0.02, go to --optim_args."
        },
    )
    bf16: bool | None = field(
        default=None,
        metadata={
            "help": "Multiply matrices in bfloat16; weights stay in float32. Default: on a CPU, if a trial shows that "
            "it is faster, for trainings of 200 steps or more; elsewhere no."
        },
    )
    shard_weights: bool = field(
        default=False,
        metadata={
            "help": "Divide weights, gradients and optimizer states among the processes (FSDP2); for mlm, causal and "
            "seq2seq."
        },
    )
    ema_decay: float | None = field(
        default=None,
        metadata={
            "help": "Evaluate and save an exponential moving average of the weights with this decay, for example "
            "0.999."
        },
    )
    word_dropout: float = field(
        default=0.0,
        metadata={"help": "Fraction of the tokens that are replaced by [MASK] in a training batch; not for mlm."},
    )
    load_best_model_at_end: bool | None = field(
        default=None,
        metadata={
            "help": "Keep the checkpoint that is best on the validation data, by metric_for_best_model, instead of "
            "the last. Default: yes, if there are such data and checkpoints are written when it is measured."
        },
    )
    early_stopping_patience: int = field(
        default=4,
        metadata={
            "help": "Stop when so many evaluations have brought nothing better, if the best checkpoint is kept; 0: "
            "never."
        },
    )
    baselines: bool = field(
        default=True,
        metadata={"help": "Measure simple means, such as a linear model, on the same data as well; takes seconds."},
    )
    seed: int | None = field(
        default=None, metadata={"help": f"Seed of initialisation, shuffling and dropout. Default: {_SEED}."}
    )
    seeds: list[int] | None = field(
        default=None,
        metadata={
            "help": "Train once with each of these seeds, keep the model that is best on the validation data, and "
            "report mean and standard deviation of all figures. Rows are held out by the first one, for all of them."
        },
    )
    eval_strategy: Literal["no", "steps", "epoch"] = field(
        default="epoch", metadata={"help": "When to evaluate on the validation data."}
    )
    save_strategy: Literal["no", "steps", "epoch", "best"] = field(
        default="epoch", metadata={"help": "When to write a checkpoint."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "How many checkpoints to keep."})
    keep_checkpoints: bool = field(
        default=False, metadata={"help": "Keep the checkpoints after the model is finished."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Steps between two points of the loss curve."})
    logging_first_step: bool = field(
        default=True, metadata={"help": "Whether the first step is a point of the loss curve."}
    )
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "Experiment trackers, for example tensorboard."}
    )

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("give --output_dir, the directory of the finished model")
        self.output_dir = check_place("output_dir", self.output_dir)
        check_number("max_tokens_per_batch", self.max_tokens_per_batch, above=0)
        check_number("time_limit_minutes", self.time_limit_minutes, above=0)
        check_number("ema_decay", self.ema_decay, above=0, below=1)
        check_number("word_dropout", self.word_dropout, at_least=0, below=1)
        check_number("early_stopping_patience", self.early_stopping_patience, at_least=0)
        check_number("num_train_epochs", self.num_train_epochs, above=0)
        if self.max_steps != -1:  # transformers' way of saying that the epochs count
            check_number("max_steps", self.max_steps, at_least=1)
        check_number("learning_rate", self.learning_rate, at_least=0)
        check_number("warmup_steps", self.warmup_steps, at_least=0)
        check_number("weight_decay", self.weight_decay, at_least=0)
        check_number(
            "per_device_train_batch_size", self.per_device_train_batch_size, at_least=1, at_most=LARGEST_BATCH
        )
        check_number("per_device_eval_batch_size", self.per_device_eval_batch_size, at_least=1, at_most=LARGEST_BATCH)
        check_number("save_total_limit", self.save_total_limit, at_least=1)
        check_number("seed", self.seed, at_least=0, at_most=_LARGEST_SEED)
        if self.seeds is not None:
            self._check_seeds()
        if self.seed is None:
            self.seed = _SEED

    @property
    def shown_seeds(self) -> str:
        """`--seeds` as it was typed, for messages."""
        return f"--seeds {' '.join(map(str, self.seeds))}"

    def _check_seeds(self) -> None:
        given = self.shown_seeds
        if self.seed is not None:
            raise InputError(f"--seed {self.seed} has no effect beside {given}; leave out one of the two")
        for seed in self.seeds:
            check_number("seeds", seed, at_least=0, at_most=_LARGEST_SEED)
        twice = [seed for place, seed in enumerate(self.seeds) if seed in self.seeds[:place]]
        if twice:
            raise InputError(f"{given}: {twice[0]} is there twice; every training needs a seed of its own")
        if len(self.seeds) < 2:
            raise InputError(f"{given}: a mean needs at least two seeds; for one training give --seed {self.seeds[0]}")


@dataclass
class TaskArguments(DataArguments):
    """Data options of a task, and what the command line must know of the task itself."""

    task: ClassVar[str]
    summary: ClassVar[str]
    model_arguments: ClassVar[type[ModelArguments]] = ModelArguments
    stock_training_arguments: ClassVar[str] = "TrainingArguments"  # of transformers
    training_defaults: ClassVar[dict[str, Any]] = {}  # of the options of training, where they differ from the others'
    packages: ClassVar[dict[str, str]] = {}  # what it needs besides the extra `train`, with the extra that has it
    measuring_options: ClassVar[tuple[str, ...]]  # by which labelled data are read and measured; noted with the model

    def check_beside(self, model: ModelArguments, training: OwnTrainingArguments) -> None:
        """Refuse options of model and training that do not go with those of the data.

        Raises:
            InputError: naming both.
        """
        if training.seeds and self.validation_fraction == 0 and not (self.validation_file or self.dataset_name):
            raise InputError(
                f"--validation_fraction 0 leaves no validation data, which {training.shown_seeds} choose the best "
                "model by; leave it out, or give --validation_file"
            )
