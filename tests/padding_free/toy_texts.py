"""Short texts of different lengths, and a tokenizer for them."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

WORDS = "harbour boat sail wave tide oven bread flour dough crust orbit star moon comet sky".split()
TEXTS = [" ".join((WORDS * 2)[n % 15 : n % 15 + 1 + 5 * n % 11]) for n in range(40)]


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of `WORDS` that pads on the right."""
    tokens = ["[PAD]", "[UNK]", "[SEP]", "[MASK]", *WORDS]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        model_max_length=64,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="[SEP]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        padding_side="right",
    )
