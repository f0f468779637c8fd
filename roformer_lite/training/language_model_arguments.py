"""Options of language models: their text, and where it comes from when it outgrows memory."""

from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError, check_number
from .arguments import ModelArguments, OwnTrainingArguments, TaskArguments
from .corpus.manifest import Manifest, read_manifest

_SHORTEST_BLOCK, _BLOCK_SIZE = 8, 256


@dataclass
class TextArguments(TaskArguments):
    """Text of language models. A .txt file is one document, or with --line_by_line each of its lines is; other files
    have one document in each row."""

    text_column: str = field(default="text", metadata={"help": "Column of the text in tables and datasets."})
    block_size: int | None = field(
        default=None, metadata={"help": "Split documents into blocks of at most this many tokens. Default: 256."}
    )
    line_by_line: bool = field(default=False, metadata={"help": "Every line of a .txt file is a document."})

    def __post_init__(self):
        super().__post_init__()
        check_number("block_size", self.block_size, at_least=_SHORTEST_BLOCK)
        self.block_size = self.block_size or _BLOCK_SIZE


@dataclass
class LanguageModelDataArguments(TextArguments):
    """The same, and data that outgrow memory."""

    task = "causal"
    training_defaults = {"per_device_train_batch_size": 8, "learning_rate": 1e-3}
    summary = "causal language model: a decoder learns to continue text"
    measuring_options = ("text_column", "block_size", "line_by_line")

    prepared: list[str] | None = field(
        default=None,
        metadata={"help": "Directories of `roformer-lite prepare`, instead of files; they bring their tokenizer."},
    )
    mixture: list[float] | None = field(
        default=None,
        metadata={
            "help": "Share of the tokens that each directory of --prepared gives, such as 0.7 0.3. Default: all of "
            "them are read equally often."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read and tokenise the training data while the model learns, without a copy; needs --max_steps."
        },
    )
    packing: int | None = field(
        default=None,
        metadata={
            "help": "Fill the rows of a batch up to this many tokens with blocks that do not see each other. Blocks "
            "of files are then split at this length, unless --block_size is given."
        },
    )

    def __post_init__(self):
        check_number("packing", self.packing, at_least=_SHORTEST_BLOCK)
        if self.prepared is not None:
            self._take_over_prepared()
        elif self.mixture is not None:
            raise InputError(f"--mixture {_shown(self.mixture)} needs --prepared, whose directories it mixes")
        if self.block_size is None:
            self.block_size = self.packing
        super().__post_init__()
        if self.packing is not None and self.packing < self.block_size:
            raise InputError(
                f"--packing {self.packing} is below the length of the blocks, {self.block_size}; give at least as many"
            )
        if self.streaming:
            self._check_streaming()

    @property
    def sources(self) -> dict[str, Any]:
        return {**super().sources, "--prepared": self.prepared}

    def check_beside(self, model: ModelArguments, training: OwnTrainingArguments) -> None:
        super().check_beside(model, training)
        if self.prepared is not None:
            model.refuse_new_tokenizer("--prepared", "which brings its own tokenizer")
        if self.packing and training.max_tokens_per_batch:
            raise InputError(
                f"--packing {self.packing} and --max_tokens_per_batch {training.max_tokens_per_batch} both say how "
                "much is in a batch; leave out one of the two"
            )
        if self.streaming and training.max_steps < 1:
            raise InputError("--streaming needs --max_steps, as nobody knows how long a stream is")

    def _check_streaming(self) -> None:
        if self.prepared is not None:
            raise InputError(
                "--streaming has no effect beside --prepared, which is never read as a whole; leave it out"
            )
        if self.validation_fraction:
            raise InputError(
                f"--validation_fraction {self.validation_fraction} cannot be taken of a stream; give "
                "--validation_file, or nothing: the first rows are held out then (--validation_fraction 0: none)"
            )

    def _take_over_prepared(self) -> None:
        """Take the length of the blocks from the prepared data, which must be for this task."""
        given = f"--prepared {' '.join(self.prepared)}"
        if self.mixture is not None:
            if len(self.mixture) != len(self.prepared):
                raise InputError(f"--mixture {_shown(self.mixture)} needs a number for each directory of {given}")
            for weight in self.mixture:
                check_number("mixture", weight, above=0)
        for option in ("block_size", "validation_fraction"):
            if getattr(self, option) is not None:
                raise InputError(
                    f"--{option} {getattr(self, option)} has no effect beside {given}; it is an option of "
                    "`roformer-lite prepare`"
                )
        manifests = {folder: read_manifest(folder) for folder in self.prepared}
        for folder, manifest in manifests.items():
            if manifest.task != self.task:
                raise InputError(f"--prepared {folder} was prepared for {manifest.task}; this is {self.task}")
        if len({manifest.tokenizer for manifest in manifests.values()}) > 1:
            raise InputError(f"{given} were prepared with different tokenizers; give `prepare` one by --tokenizer")
        self.block_size = max(manifest.block_size for manifest in manifests.values())
        if not (self.validation_file or self.test_file):  # for which these options could be
            self._take_over_reading(given, list(manifests.values()))

    def _take_over_reading(self, prepared: str, manifests: list[Manifest]) -> None:
        """Take the way to read text from the first directory: it is noted with the model, for `evaluate`."""
        for option in ("text_column", "line_by_line", "column_names"):
            default, given = self.__dataclass_fields__[option].default, getattr(self, option)
            values = [manifest.options.get(option, default) for manifest in manifests]
            if given == default:
                setattr(self, option, values[0])
            elif given not in values:
                shown = " ".join(map(str, given)) if isinstance(given, list) else given
                raise InputError(
                    f"--{option} {shown} has no effect beside {prepared}; it is an option of `roformer-lite prepare`"
                )


def _shown(numbers: list[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


@dataclass
class MaskedLMDataArguments(LanguageModelDataArguments):
    """The same, with the masking."""

    task = "mlm"
    training_defaults = {"per_device_train_batch_size": 8}
    summary = "masked language model: an encoder learns a language from plain text"
    measuring_options = (*LanguageModelDataArguments.measuring_options, "mlm_probability")

    mlm_probability: float = field(default=0.15, metadata={"help": "Fraction of the tokens to mask and predict."})

    def __post_init__(self):
        super().__post_init__()
        check_number("mlm_probability", self.mlm_probability, above=0, at_most=1)
