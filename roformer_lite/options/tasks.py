"""Options of `roformer-lite train` that belong to one task: columns, lengths, labels and defaults.

`TASK_ARGUMENTS` lists the tasks. Nothing here imports torch, unlike their implementations in
`recipes/`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..errors import InputError, check_number
from .common import DataArguments, TrainingOptions

# The shortest text is [CLS], one token and [SEP]. In a pair, another token and [SEP] follow.
MIN_TEXT_LENGTH = 3
MIN_PAIR_LENGTH = 5
# The options of all tasks that limit the number of tokens, with their smallest values. The shortest
# target consists of one token and [SEP].
LENGTH_OPTIONS = {
    "max_length": MIN_TEXT_LENGTH,
    "max_source_length": MIN_TEXT_LENGTH,
    "max_target_length": 2,
    "block_size": 8,
}


@dataclass(frozen=True)
class TaskArguments(DataArguments):
    """Data options of a task, and the properties of the task that the command line depends on.

    Attributes:
        task: The name of the task.
        summary: Its description in the help.
        training_defaults: Its defaults of training options, if they differ from the usual ones.
        packages: The packages that it needs in addition to the extra `train`.
        measuring_options: The options that determine how labelled data are read and evaluated. They
            are saved with the model.
    """

    group = "data and task"

    task: ClassVar[str]
    summary: ClassVar[str]
    training_defaults: ClassVar[dict[str, Any]] = {}
    packages: ClassVar[tuple[str, ...]] = ()
    measuring_options: ClassVar[tuple[str, ...]]

    def __post_init__(self):
        super().__post_init__()
        for name, smallest in LENGTH_OPTIONS.items():
            check_number(name, getattr(self, name, None), minimum=smallest)

    def check_combination(self, training: TrainingOptions) -> None:
        """Reject options of the training that can't be combined with those of the data.

        Raises:
            InputError: naming both.
        """
        if training.word_dropout and self.task == "mlm":
            raise InputError(
                f"--word_dropout {training.word_dropout}: mlm already masks tokens; see "
                "--mlm_probability"
            )


# On a few thousand labels a model overfits within a few epochs unless noise is added; see
# docs/experiments.md.
_FOR_LABELS = {"word_dropout": 0.2, "ema_decay": 0.999}


@dataclass(frozen=True)
class LabelArguments(TaskArguments):
    """The options that classify and tag share.

    Args:
        join_baseline: Add the scores of the baseline to those of the encoder, in predict, evaluate
            and app. The baseline is a linear SVM on n-grams (classify) or a conditional random
            field on words (tag). The validation data choose the weights of the two. Default: true
            for new models, false with --model_name_or_path. Not for regression.
        fit_head: Fit the new head of a pretrained model (--model_name_or_path) as a linear model on
            the frozen encoder before the whole model is trained. For this, a sentence encoder is
            converted to a RoFormerLite model, whose head reads the sentence vectors. With false,
            the encoder keeps its own class.
    """

    join_baseline: bool | None = None
    fit_head: bool = True


@dataclass(frozen=True)
class Seq2SeqDataArguments(TaskArguments):
    """Columns and lengths of seq2seq.

    Args:
        source_column: Column of the input text.
        target_column: Column of the output text.
        max_source_length: Truncate inputs to this many tokens.
        max_target_length: Truncate target texts to this many tokens. This also limits generated
            texts, unless --max_new_tokens is passed.
        bleu_tokenizer: Tokenizer of sacrebleu: zh for Chinese targets, char for other languages
            without spaces. Those for Japanese and Korean, and those of sentencepiece (spm,
            flores200, spBLEU-1K), need further packages.
    """

    task = "seq2seq"
    summary = "text to text: translation, normalisation, spelling …"
    measuring_options = (
        "source_column",
        "target_column",
        "max_source_length",
        "max_target_length",
        "bleu_tokenizer",
    )

    source_column: str = "source"
    target_column: str = "target"
    max_source_length: int = 128
    max_target_length: int = 128
    bleu_tokenizer: str = "13a"


@dataclass(frozen=True)
class LanguageModelDataArguments(TaskArguments):
    """Text of language models. A .txt file is one document, or one document per line with
    --line_by_line; other files have one document in each row.

    Args:
        text_column: Column of the text in tables and datasets.
        block_size: Split documents into blocks of at most this many tokens.
        line_by_line: Every line of a .txt file is a document.
    """

    task = "causal"
    training_defaults = {"per_device_train_batch_size": 8, "learning_rate": 1e-3}
    summary = "causal language model: a decoder learns to continue text"
    measuring_options: ClassVar[tuple[str, ...]] = ("text_column", "block_size", "line_by_line")

    text_column: str = "text"
    block_size: int = 256
    line_by_line: bool = False


@dataclass(frozen=True)
class MaskedLMDataArguments(LanguageModelDataArguments):
    """Text and masking of masked language models.

    Args:
        mlm_probability: Fraction of the tokens to mask and predict.
    """

    task = "mlm"
    training_defaults = {"per_device_train_batch_size": 8}
    summary = "masked language model: an encoder learns a language from plain text"
    measuring_options = (*LanguageModelDataArguments.measuring_options, "mlm_probability")

    mlm_probability: float = 0.3

    def __post_init__(self):
        super().__post_init__()
        check_number("mlm_probability", self.mlm_probability, above=0, maximum=1)


@dataclass(frozen=True)
class ClassifyDataArguments(LabelArguments):
    """Columns and labels of classification.

    Args:
        text_column: Column of the text.
        text_pair_column: Column of a second text, for pairs.
        label_column: Column of the label: text or an integer; in regression, a number.
        max_length: Truncate texts (a pair together) to this many tokens. A model with a table of
            positions, such as BERT, predicts from overlapping windows of a longer text. Default:
            2048; fine-tuning: 256, or as many as the model has positions for.
        problem_type: single_label_classification, multi_label_classification or regression.
            Default: multi_label_classification with lists of labels or --label_separator, otherwise
            single_label_classification.
        label_separator: Separator between the labels of one row, such as a comma. Default: one
            label in each row.
    """

    task = "classify"
    training_defaults = _FOR_LABELS
    summary = "text classification: one label, several, or a number"
    measuring_options = (
        "text_column",
        "text_pair_column",
        "label_column",
        "label_separator",
        "max_length",
    )

    text_column: str = "text"
    text_pair_column: str | None = None
    label_column: str = "label"
    max_length: int | None = None
    problem_type: (
        Literal["single_label_classification", "multi_label_classification", "regression"] | None
    ) = None
    label_separator: str | None = None

    def __post_init__(self):
        if self.text_pair_column is not None:
            check_number("max_length", self.max_length, minimum=MIN_PAIR_LENGTH)
        super().__post_init__()
        if self.label_separator == "":
            raise InputError(
                "--label_separator is empty; pass the text between two labels, such as a comma, or "
                "leave it out"
            )
        for name in ("text_column", "text_pair_column"):
            if getattr(self, name) == self.label_column:
                raise InputError(
                    f"--{name} {self.label_column} is also the column of the label; choose another "
                    "one with --label_column"
                )


@dataclass(frozen=True)
class TagDataArguments(LabelArguments):
    """Columns and units of tagging. A .jsonl file has lists of tokens and of tags; any other file
    has a token on each line, in the first column, with its tag in the last one, and a blank line
    after each sentence (CoNLL, IOB2). Tabs or spaces separate the columns.

    Args:
        train_file: Training data: .jsonl with lists of tokens and of tags, or any other text file
            with a token and its tag on each line; also .gz. Several are read one after another.
        token_column: Column of the tokens in .jsonl files. Default: tokens
        tag_column: Column of the tags in .jsonl files. Default: tags
        unit: The unit that gets a tag. characters splits the words of the data, for languages
            without spaces; auto does so if most of the training text is Chinese characters and the
            tags are IOB1 or IOB2.
        max_length: Truncate training sentences to this many tokens. In predictions, longer
            sentences are read in overlapping windows of this length.
    """

    task = "tag"
    training_defaults = _FOR_LABELS
    summary = "tagging: entities, parts of speech; a tag for every token"
    measuring_options = ("token_column", "tag_column")

    token_column: str | None = None
    tag_column: str | None = None
    unit: Literal["auto", "words", "characters"] = "auto"
    max_length: int = 512

    def __post_init__(self):
        super().__post_init__()
        if self.token_column is not None and self.token_column == self.tag_column:
            raise InputError(
                f"--token_column and --tag_column are both {self.tag_column}; the tags need "
                "another column"
            )


@dataclass(frozen=True)
class SentenceDataArguments(TaskArguments):
    """The options that embed and rerank share. The columns determine the kind of training: anchor
    and positive, with or without negative; or sentence1, sentence2 and score.

    Args:
        max_length: Truncate texts to this many tokens.
    """

    training_defaults = {"per_device_train_batch_size": 64}
    packages = ("sentence_transformers",)
    measuring_options = ("max_length",)

    max_length: int = 128

    def check_combination(self, training: TrainingOptions) -> None:
        super().check_combination(training)
        if training.max_tokens_per_batch or training.word_dropout:
            raise InputError(
                f"--max_tokens_per_batch and --word_dropout are not for {self.task}, because the "
                "trainer of sentence-transformers makes its own batches; leave them out"
            )


@dataclass(frozen=True)
class EmbedDataArguments(SentenceDataArguments):
    """Pairs, triplets or scores."""

    task = "embed"
    summary = "sentence embeddings: a vector for a text, from pairs, triplets or scores"


@dataclass(frozen=True)
class RerankDataArguments(SentenceDataArguments):
    """Pairs, triplets or scores for reranking. A score lies between 0 and 1.

    Args:
        max_length: Truncate pairs of texts to this many tokens together.
    """

    task = "rerank"
    summary = "reranking: a score for a pair of texts, from pairs, triplets or scores"
    # Each query is scored with several documents, so batches are small.
    training_defaults = {"per_device_train_batch_size": 16}

    max_length: int = 256

    def __post_init__(self):
        super().__post_init__()
        check_number("max_length", self.max_length, minimum=MIN_PAIR_LENGTH)


TASK_ARGUMENTS: dict[str, type[TaskArguments]] = {
    arguments.task: arguments
    for arguments in (
        Seq2SeqDataArguments,
        MaskedLMDataArguments,
        LanguageModelDataArguments,
        ClassifyDataArguments,
        TagDataArguments,
        EmbedDataArguments,
        RerankDataArguments,
    )
}
