"""Options of `roformer-lite train` that every task has: data, tokenizer and model, training,
publishing.

`parser.py` turns every field into an option. The fields hold the values that were given: None
stands for a default that depends on other options and is filled in by a property or by
`training/defaults.py`. Nothing here imports torch, so that `--help` and error messages appear
quickly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from ..errors import InputError, check_file, check_number
from ..output import check_place

MAX_SEED = 2**32 - 1


def given_options(options: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found: dict[str, Any] = {}
    for option in fields(options):
        value = getattr(options, option.name)
        # The default of every list and mapping is empty.
        if value not in (option.default, [], {}):
            found[option.name] = value
    return found


def refuse_ignored(options: Any, names: Sequence[str], given: str, why: str) -> None:
    """Reject given options with these names, because the option `given` makes them ineffective."""
    values = given_options(options)
    ignored = [f"--{name} {values[name]}" for name in names if name in values]
    if ignored:
        raise InputError(
            f"{' '.join(ignored)} has no effect with {given}, {why}; leave out one of the two"
        )


@dataclass(frozen=True)
class TableArguments:
    """The form of tables.

    Args:
        column_names: Names of the columns of .tsv and .csv files that have no header line.
    """

    column_names: list[str] | None = None


@dataclass(frozen=True)
class DataArguments(TableArguments):
    """Where the examples come from.

    Args:
        dataset_name: A dataset on the Hub, instead of files.
        dataset_config_name: Configuration of that dataset, if it has several.
        train_file: Training data: .tsv, .csv or .jsonl, also .gz; several are read one after
            another. (mlm and causal also read plain .txt, and tag also reads files with a token and
            its tag on each line.)
        validation_file: Validation data, used to evaluate the model during training and at the end.
        test_file: Test data, used to evaluate the model only at the end.
        validation_fraction: Hold out this fraction of the training data (0.05 is 5 % of the
            rows), even if the dataset has a split for validation; 0 holds out nothing. Default:
            0.1, but at most 2,000 rows, if there are no validation data. Data with fewer than 100
            rows (500 for a classifier that starts from a sentence encoder) are not split.
        validation_seed: Seed that chooses the rows to hold out, if any are. Default: the seed of
            the training.
        train_split: Split of --dataset_name to train on.
        validation_split: Split of --dataset_name for validation. If the dataset lacks the default
            split, training rows are held out.
        test_split: Split of --dataset_name for testing. If the dataset lacks the default split,
            nothing is tested.
    """

    group: ClassVar[str] = "data"

    dataset_name: str | None = None
    dataset_config_name: str | None = None
    train_file: list[str] | None = None
    validation_file: list[str] | None = None
    test_file: list[str] | None = None
    validation_fraction: float | None = None
    validation_seed: int | None = None
    train_split: str = "train"
    validation_split: str = "validation"
    test_split: str = "test"

    def __post_init__(self):
        if (self.train_file is None) == (self.dataset_name is None):
            raise InputError("pass either --train_file or --dataset_name")
        check_number("validation_fraction", self.validation_fraction, minimum=0, below=1)
        check_number("validation_seed", self.validation_seed, minimum=0, maximum=MAX_SEED)
        if self.validation_file:
            held_out = ("validation_fraction", "validation_seed")
            refuse_ignored(self, held_out, "--validation_file", "whose rows are used")
        if self.dataset_name is not None and (self.validation_file or self.test_file):
            raise InputError(
                "--validation_file and --test_file go with --train_file, not with --dataset_name"
            )
        if self.dataset_name is None:
            refuse_ignored(
                self,
                ("dataset_config_name", "train_split", "validation_split", "test_split"),
                given="--train_file",
                why="which names files and not a dataset on the Hub",
            )
        for name in ("train_file", "validation_file", "test_file"):
            for path in getattr(self, name) or ():
                check_file(name, path)


@dataclass(frozen=True)
class ModelArguments:
    """The model and its tokenizer.

    Args:
        tokenizer: Tokenizer of a new model. Default: train one on the training data.
        vocab_size: Largest vocabulary of a new tokenizer. Default: 8192.
        size: Width and depth of a new model (128x2, 256x4, 512x4, 768x12). Default: mini, but with
            only two layers for classify and tag.
        config: Fields of the configuration to set, in addition to those of the size, as name=value,
            for example hidden_dropout=0.3. With seq2seq, encoder={"num_hidden_layers":2} changes
            only one side.
        model_name_or_path: Start from the weights and the tokenizer of this model instead of from
            scratch: a directory or a name on the Hub. It can be a RoFormerLite model or a
            stock model, such as BERT.
    """

    group: ClassVar[str] = "model and tokenizer"

    tokenizer: str | None = None
    vocab_size: int | None = None
    size: Literal["tiny", "mini", "small", "base"] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    model_name_or_path: str | None = None

    def __post_init__(self):
        if self.tokenizer is not None:
            refuse_ignored(self, ["vocab_size"], "--tokenizer", "which is used as it is")
        check_number("vocab_size", self.vocab_size, minimum=1)
        if self.model_name_or_path is not None:
            new = ("size", "tokenizer", "vocab_size")
            why = "which has its own size and tokenizer"
            refuse_ignored(self, new, "--model_name_or_path", why)


@dataclass(frozen=True)
class TrainingOptions:
    """How the model is trained. The other `TrainingArguments` of transformers are in
    `training_arguments`.

    Args:
        output_dir: Directory of the finished model. Required.
        overwrite_output_dir: Replace a finished model, and discard an unfinished training with
            other options.
        num_train_epochs: Passes over the training data. Default: as many as cover 300,000 examples
            (classify and tag: or 8 million tokens, if that takes fewer epochs), but at least 3 and
            at most 20; fine-tuning: 4.
        max_steps: Number of training steps, instead of epochs.
        per_device_train_batch_size: Rows in a training batch on each device. Default: 32 (classify
            and tag: fewer if 32 rows have more than 8,192 tokens on average); mlm and causal 8,
            embed 64, rerank 16.
        max_tokens_per_batch: Limit on the real tokens in a training batch on each device, instead
            of a fixed number of rows; not for embed and rerank.
        per_device_eval_batch_size: Rows in an evaluation batch on each device.
        learning_rate: Peak learning rate. Default: 5e-4, causal 1e-3; fine-tuning: 1e-4, or 3e-4
            for models that this command has trained from scratch.
        warmup_steps: Steps of warm-up; a number below 1 is a fraction of the training. Default:
            0.06; fine-tuning: 0.1.
        weight_decay: Weight decay.
        optim: The optimizer: one of transformers, or muon, which uses torch's Muon for the matrices
            of the layers and AdamW for the rest.
        bf16: Multiply matrices in bfloat16; weights stay in float32. Faster on GPUs, and on CPUs
            with instructions for it (AMX, AVX512-BF16).
        ema_decay: Evaluate and save an exponential moving average of the weights with this decay.
            Default: no average; 0.999 for new classifiers and taggers, where 0 disables it.
        word_dropout: Fraction of the tokens in a training batch to replace by [MASK], or by the
            unknown or padding token if there is no mask token; not for mlm, embed and rerank.
            Default: 0; 0.2 for new classifiers and taggers.
        early_stopping_patience: Stop after this many consecutive evaluations without improvement,
            if the best checkpoint is kept; 0: never.
        baselines: Also evaluate baselines, such as a linear model, on the same data. This
            usually takes seconds; a CRF (tag) takes longer.
        seed: Seed of initialisation, shuffling and dropout.
        seeds: Train once with each of these seeds, keep the model that is best on the validation
            data, and report mean and standard deviation of all metrics. The first seed chooses the
            held-out rows for all of them, unless --validation_seed does.
        keep_checkpoints: Keep the checkpoints after the model is finished.
        use_cpu: Train on the CPU, even if there is a GPU.
        training_arguments: Any other field of TrainingArguments in transformers (of
            Seq2SeqTrainingArguments for seq2seq), as name=value, for example
            lr_scheduler_type=cosine adam_beta2=0.98.
    """

    group: ClassVar[str] = "training"

    output_dir: str = ""
    overwrite_output_dir: bool = False
    num_train_epochs: float | None = None
    max_steps: int | None = None
    per_device_train_batch_size: int | None = None
    max_tokens_per_batch: int | None = None
    per_device_eval_batch_size: int = 64
    learning_rate: float | None = None
    warmup_steps: float | None = None
    weight_decay: float = 0.01
    optim: str = "adamw_torch_fused"
    bf16: bool = False
    ema_decay: float | None = None
    word_dropout: float | None = None
    early_stopping_patience: int = 4
    baselines: bool = True
    seed: int = 42
    seeds: list[int] = field(default_factory=list)
    keep_checkpoints: bool = False
    use_cpu: bool = False
    training_arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("pass --output_dir, the directory of the finished model")
        place = check_place("output_dir", self.output_dir)
        object.__setattr__(self, "output_dir", place)  # The object is frozen.
        for name in ("num_train_epochs", "max_tokens_per_batch"):
            check_number(name, getattr(self, name), above=0)
        for name in ("max_steps", "per_device_train_batch_size", "per_device_eval_batch_size"):
            check_number(name, getattr(self, name), minimum=1)
        for name in ("learning_rate", "warmup_steps", "weight_decay", "early_stopping_patience"):
            check_number(name, getattr(self, name), minimum=0)
        for name in ("ema_decay", "word_dropout"):
            check_number(name, getattr(self, name), minimum=0, below=1)
        for seed in (self.seed, *self.seeds):
            check_number("seed", seed, minimum=0, maximum=MAX_SEED)
        if self.seeds and len(set(self.seeds)) < max(2, len(self.seeds)):
            raise InputError(
                f"--seeds {' '.join(map(str, self.seeds))} must be at least two different numbers"
            )
        if self.seeds:
            refuse_ignored(self, ["seed"], given="--seeds", why="which names all seeds")
        for name in self.training_arguments:
            given = f"--training_arguments {name}"
            if name in _REFUSED:
                raise InputError(f"{given}: {_REFUSED[name]}")
            if name in self.__dataclass_fields__ or name in PublishingOptions.__dataclass_fields__:
                raise InputError(f"{given}: pass the option --{name} instead")


# Arguments of transformers that would be overridden or do harm.
_REFUSED = {
    "resume_from_checkpoint": "the same command continues an interrupted training by itself",
    "hub_token": (
        "run.yaml and the card would show it; log in with `hf auth login`, or set HF_TOKEN"
    ),
    "eval_on_start": "a resumed training would stop at another step than an uninterrupted one",
    "save_only_model": "an interrupted training would continue with a new optimizer",
    "push_to_hub": "upload the finished model with `hf upload REPOSITORY DIRECTORY`",
    "dataloader_drop_last": "the metrics need all rows of the validation data",
    "prediction_loss_only": "the metrics need the predictions",
    "label_names": "the task determines the names of the labels in a batch",
}


@dataclass(frozen=True)
class PublishingOptions:
    """The parts of the model card that are not measured.

    Args:
        language: ISO 639 codes of the languages, for example en de. The Hub checks them when the
            model is uploaded.
        license: Licence of the model, as the Hub names it, for example apache-2.0. The Hub checks
            the name as well.
        dataset_title: Name of the data on the card. Default: the file names.
        datasets: Names of the datasets on the Hub, if the files are copies of them.
        hub_model_id: Repository to which you will upload the model, for the title and the code of
            the card. Default: name of the directory.
    """

    group: ClassVar[str] = "model card and Hub"

    language: list[str] = field(default_factory=list)
    license: str | None = None
    dataset_title: str | None = None
    datasets: list[str] = field(default_factory=list)
    hub_model_id: str | None = None
