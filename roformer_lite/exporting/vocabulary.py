"""The names of all rows of an embedding, for runtimes that know tokens by their names."""

from transformers import PreTrainedTokenizerBase

from ..errors import InputError


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """The tokens by id; rows of the embedding beyond them get names that no text has.

    Args:
        tokenizer: Of the model.
        size: Rows of the embedding.

    Raises:
        InputError: when the tokenizer has more tokens than the embedding has rows.
    """
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    if max(tokens) >= size:
        raise InputError(f"the tokenizer has {max(tokens) + 1} tokens, but vocab_size={size}: it is another model's")
    return [tokens.get(index, f"<unused {index}>") for index in range(size)]
