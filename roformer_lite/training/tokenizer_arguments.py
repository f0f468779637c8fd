"""Options of the tokenizer, which training and preparing data share."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from ..errors import InputError, check_number

_LARGEST_VOCABULARY = 10_000_000  # the tokenizers library reserves memory for all of it, and ends the process without

# Options of a new tokenizer and their defaults. In the dataclass they are None, to tell whether they were given.
NEW_TOKENIZER = {"vocab_size": 8192, "tokenizer_algorithm": "bpe", "tokenizer_min_frequency": 2}


@dataclass
class TokenizerArguments:
    """Which tokenizer."""

    _argument_group_name: ClassVar[str] = "tokenizer"

    tokenizer: str | None = field(
        default=None, metadata={"help": "Tokenizer to use. Default: train one on the training data."}
    )
    vocab_size: int | None = field(
        default=None, metadata={"help": "Vocabulary size of a new tokenizer. Default: 8192."}
    )
    tokenizer_algorithm: Literal["bpe", "unigram", "wordpiece"] | None = field(
        default=None,
        metadata={"help": "Algorithm of a new tokenizer; bpe and unigram decode any text exactly. Default: bpe."},
    )
    tokenizer_min_frequency: int | None = field(
        default=None,
        metadata={
            "help": "How often a token must occur in the training data to enter the vocabulary of a new tokenizer. "
            "Default: 2."
        },
    )

    def __post_init__(self):
        self._new_tokenizer = {name: getattr(self, name) for name in NEW_TOKENIZER if getattr(self, name) is not None}
        if self.tokenizer is not None:
            self.refuse_new_tokenizer("--tokenizer", "which is taken as it is")
        for name, default in NEW_TOKENIZER.items():
            if getattr(self, name) is None:
                setattr(self, name, default)
        check_number("vocab_size", self.vocab_size, at_least=1, at_most=_LARGEST_VOCABULARY)
        check_number("tokenizer_min_frequency", self.tokenizer_min_frequency, at_least=0)

    @property
    def has_tokenizer_options(self) -> bool:
        """Whether a new tokenizer was asked for by one of its options."""
        return bool(self._new_tokenizer)

    def refuse_new_tokenizer(self, given: str, why: str) -> None:
        """Refuse options of a new tokenizer, which would be ignored beside the option `given`.

        Raises:
            InputError: naming both.
        """
        refuse_beside(self._new_tokenizer, given, why)


def refuse_beside(options: dict[str, Any], given: str, why: str) -> None:
    """Refuse `options` with a value, which would be ignored beside the option `given`."""
    beside = [f"--{name} {value}" for name, value in options.items() if value is not None]
    if beside:
        raise InputError(f"{' '.join(beside)} has no effect beside {given}, {why}; leave out one of the two")
