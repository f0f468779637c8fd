"""Training of tokenizers, in whose texts very long words are cut.

`RoFormerLiteTokenizer` calls this module. It is not part of a saved model, but the tokenizers of
saved bundles call `trained` by name.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import models, pre_tokenizers
from transformers.tokenization_utils_tokenizers import TokenizersBackend
from transformers.utils import logging

from .model.tokenization_roformer_lite import replaced_parts

logger = logging.get_logger(__name__)

# The number of bytes (in WordPiece, of characters) after which a word is cut. No word of a natural
# language is this long, and a run of Chinese between two punctuation marks rarely is. Encoded
# images, protein sequences and rulers made of hyphens are.
MAX_WORD_LENGTH = 1024


def trained(
    tokenizer: Any,
    text_iterator: Iterable[str] | Iterable[list[str]],
    vocab_size: int,
    *args: Any,
    is_bound: bool = False,
    min_frequency: int = 2,
    **kwargs: Any,
) -> Any:
    """Train a new tokenizer of the same kind as `tokenizer`, a `RoFormerLiteTokenizer`.

    Args:
        vocab_size: The number of entries. If special tokens and alphabet already need more, the
            tokenizer has more, with a warning.
        is_bound: Whether to raise an error in that case.
        min_frequency: Pairs that occur less often are not merged.
        args, kwargs: Further arguments of transformers' `train_new_from_iterator`.

    Raises:
        ValueError: if `vocab_size` is too small and `is_bound` is set, if there is no text, or for
            a Unigram tokenizer.
    """
    if isinstance(tokenizer.backend_tokenizer.model, models.Unigram):
        raise ValueError(
            "a Unigram tokenizer of an earlier version cannot be trained on other text; train a "
            "new tokenizer with algorithm='bpe'"
        )
    backend = tokenizer.backend_tokenizer
    splits = [backend.pre_tokenizer, pre_tokenizers.FixedLength(MAX_WORD_LENGTH)]
    if backend.pre_tokenizer is None:
        del splits[0]
    with replaced_parts(backend, pre_tokenizer=pre_tokenizers.Sequence(splits)):
        new = TokenizersBackend.train_new_from_iterator(
            tokenizer,
            texts_of(text_iterator),
            vocab_size,
            *args,
            min_frequency=min_frequency,
            **kwargs,
        )
    new.backend_tokenizer.pre_tokenizer = backend.pre_tokenizer
    # The ids of the special tokens may have changed.
    new.backend_tokenizer.post_processor = new.template()
    new.add_bos_token = tokenizer.add_bos_token
    new.add_eos_token = tokenizer.add_eos_token
    if new.vocab_size > vocab_size:
        message = (
            f"vocab_size={vocab_size} is too small: special tokens and the alphabet of this text "
            f"take {new.vocab_size} entries"
        )
        if is_bound:
            raise ValueError(message)
        logger.warning(message)
    return new


def texts_of(items: Iterable[str] | Iterable[list[str]]) -> Iterator[str]:
    """The non-blank texts of an iterable of texts or of lists of texts.

    Raises:
        ValueError: if there are none.
        TypeError: for a single string, and for an item that is not a string.
    """
    if isinstance(items, str):
        raise TypeError(
            f"{items[:50]!r} is one text; pass an iterable of texts, such as "
            'open("text.txt", encoding="utf-8")'
        )
    has_text = False
    for item in items:
        for text in item if isinstance(item, list | tuple) else [item]:
            if not isinstance(text, str):
                raise TypeError(
                    f"the source of texts holds {text!r}, a {type(text).__name__}, not a str"
                )
            if text.strip():
                has_text = True
                yield text
    if not has_text:
        raise ValueError("nothing to train on: the source holds no text")
