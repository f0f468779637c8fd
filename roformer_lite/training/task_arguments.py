"""Options of `roformer-lite train` that belong to one task: columns, lengths, labels.

`TASK_ARGUMENTS` names the tasks. Their implementations in `tasks/` import torch; nothing here does.
"""

from dataclasses import dataclass, field
from typing import Literal

from ..errors import InputError, check_number
from .arguments import Seq2SeqModelArguments, TaskArguments
from .language_model_arguments import LanguageModelDataArguments, MaskedLMDataArguments

_SHORTEST_TEXT = 3  # [CLS], a token of text and [SEP]
_SHORTEST_PAIR = 5  # and another token with a [SEP]
# The tokenizers of sacrebleu, which is imported only to measure.
BleuTokenizer = Literal[
    "13a", "zh", "char", "intl", "none", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200", "spBLEU-1K"
]

# A few thousand labels are learnt by heart in a few epochs unless noise is added; see docs/defaults.md.
_FOR_LABELS = {"word_dropout": 0.2, "ema_decay": 0.999}


@dataclass
class LabelArguments(TaskArguments):
    """What classify and tag share."""

    text_scores: bool | None = field(
        default=None,
        metadata={
            "help": "Fit a linear model on n-grams (classify) or a conditional random field on words (tag) beside the "
            "encoder and join the two, if that is better on the validation data. Default: for new models, not beside "
            "--model_name_or_path."
        },
    )
    fit_head: bool = field(
        default=True,
        metadata={
            "help": "Fit a new head on the weights of --model_name_or_path as a linear model on the frozen encoder, "
            "before all of the model is trained."
        },
    )


@dataclass
class Seq2SeqDataArguments(TaskArguments):
    """Columns and lengths of seq2seq. Plain .txt files come in pairs: source lines, then target lines."""

    task = "seq2seq"
    summary = "text to text: translation, normalisation, spelling …"
    model_arguments = Seq2SeqModelArguments
    stock_training_arguments = "Seq2SeqTrainingArguments"
    measuring_options = ("source_column", "target_column", "max_source_length", "max_target_length", "bleu_tokenizer")

    source_column: str = field(default="source", metadata={"help": "Column of the input text."})
    target_column: str = field(default="target", metadata={"help": "Column of the output text."})
    max_source_length: int = field(default=128, metadata={"help": "Truncate inputs to this many tokens."})
    max_target_length: int = field(
        default=128, metadata={"help": "Truncate outputs to this many tokens, in training only."}
    )
    bleu_tokenizer: BleuTokenizer = field(
        default="13a",
        metadata={
            "help": "Tokenizer of sacrebleu, for example zh for Chinese; those of Japanese and Korean and of "
            "sentencepiece (spm, flores, spBLEU) need further packages."
        },
    )

    def __post_init__(self):
        super().__post_init__()
        check_number("max_source_length", self.max_source_length, at_least=_SHORTEST_TEXT)
        check_number("max_target_length", self.max_target_length, at_least=2)  # a token of text and [SEP]


@dataclass
class ClassifyDataArguments(LabelArguments):
    """Columns and labels of classification."""

    task = "classify"
    training_defaults = _FOR_LABELS
    summary = "text classification: one label, several, or a number"
    measuring_options = ("text_column", "text_pair_column", "label_column", "label_separator", "max_length")

    text_column: str = field(default="text", metadata={"help": "Column of the text."})
    text_pair_column: str | None = field(default=None, metadata={"help": "Column of a second text, for pairs."})
    label_column: str = field(default="label", metadata={"help": "Column of the label, any text or number."})
    max_length: int = field(default=256, metadata={"help": "Truncate texts (a pair together) to this many tokens."})
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = field(
        default=None,
        metadata={
            "help": "single_label_classification, multi_label_classification or regression. Default: multi_label "
            "with lists of labels or --label_separator, otherwise single_label."
        },
    )
    label_separator: str | None = field(
        default=None, metadata={"help": "Text between several labels of one row. Default: a row has one label."}
    )

    def __post_init__(self):
        super().__post_init__()
        shortest = _SHORTEST_TEXT if self.text_pair_column is None else _SHORTEST_PAIR
        check_number("max_length", self.max_length, at_least=shortest)
        for option in ("text_column", "text_pair_column"):
            if getattr(self, option) == self.label_column:
                raise InputError(
                    f"--{option} {self.label_column} is also the column of the label; give --label_column another"
                )


@dataclass
class TagDataArguments(LabelArguments):
    """Columns and units of tagging. A .jsonl file has lists of tokens and of tags; any other file has one token on
    each line, its columns separated by tabs or spaces, and a blank line after each sentence (CoNLL, IOB2)."""

    task = "tag"
    training_defaults = _FOR_LABELS
    summary = "tagging: entities, parts of speech; a tag for every token"
    measuring_options = ("token_column", "tag_column")

    token_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of the tokens: a name in .jsonl files (default: tokens), a number from 1 in others "
            "(default: 1)."
        },
    )
    tag_column: str | None = field(
        default=None,
        metadata={
            "help": "Column of the tags: a name in .jsonl files (default: tags), a number in others (default: -1, the "
            "last)."
        },
    )
    unit: Literal["auto", "words", "characters"] = field(
        default="auto",
        metadata={
            "help": "What gets a tag. characters splits the words of the data, for languages without spaces; auto "
            "does so if most of the training text is Chinese characters and the tags are IOB."
        },
    )
    max_length: int = field(default=512, metadata={"help": "Truncate training sentences to this many tokens."})

    def __post_init__(self):
        super().__post_init__()
        check_number("max_length", self.max_length, at_least=_SHORTEST_TEXT)
        if self.token_column is not None and self.token_column == self.tag_column:
            raise InputError(
                f"--token_column and --tag_column are both {self.tag_column}; the tags need another column"
            )


@dataclass
class SentenceDataArguments(TaskArguments):
    """What embed and rerank share. The columns say what is learnt: anchor and positive, with or
    without negative; or sentence1, sentence2 and score."""

    training_defaults = {"per_device_train_batch_size": 64}
    packages = {"sentence_transformers": "embed"}
    measuring_options = ("max_length",)

    max_length: int = field(default=128, metadata={"help": "Truncate texts to this many tokens."})

    def __post_init__(self):
        super().__post_init__()
        check_number("max_length", self.max_length, at_least=_SHORTEST_TEXT)


@dataclass
class EmbedDataArguments(SentenceDataArguments):
    """The same, or the column text beside a teacher. A .txt file has a text on each line."""

    task = "embed"
    summary = "sentence embeddings: a vector for a text, from pairs, triplets, scores or a teacher"

    teacher: str | None = field(
        default=None,
        metadata={
            "help": "A model of sentence-transformers, a directory or a name on the Hub: learn its vectors of the "
            "texts in the column text. A new model takes over its tokenizer and begins with its vectors of single "
            "tokens, unless options such as --vocab_size ask for a new tokenizer."
        },
    )
    matryoshka: list[int] = field(
        default_factory=list,
        metadata={"help": "Train the first so many numbers of a vector to serve alone, for example 128 64."},
    )

    def __post_init__(self):
        super().__post_init__()
        for width in self.matryoshka:
            check_number("matryoshka", width, at_least=1)
        if len(set(self.matryoshka)) < len(self.matryoshka):
            raise InputError(f"--matryoshka {' '.join(map(str, self.matryoshka))} names a width twice")


@dataclass
class RerankDataArguments(SentenceDataArguments):
    """The same. A score lies between 0 and 1."""

    task = "rerank"
    summary = "reranking: a score for a pair of texts, from pairs, triplets or scores"
    training_defaults = {"per_device_train_batch_size": 16}  # each row is read with several others

    max_length: int = field(default=256, metadata={"help": "Truncate pairs of texts to this many tokens together."})

    def __post_init__(self):
        super().__post_init__()
        check_number("max_length", self.max_length, at_least=_SHORTEST_PAIR)


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
