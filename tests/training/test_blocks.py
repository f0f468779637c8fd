"""The blocks that language models learn from, and the token ids that they are cut of."""

from math import ceil

import numpy as np
import pytest
from transformers import BertTokenizer, PreTrainedTokenizerFast

from hf_roformer_lite import RoFormerLiteTokenizer
from roformer_lite.training.tasks.blocks import BlockCutter, token_ids

TEXTS = ["a fine film, fine from end to end", "", "  two  spaces\n[SEP] and [MASK]", "电影 很好看", "naïve é\u0301 🎬"]


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece"])
def tokenizer(request) -> RoFormerLiteTokenizer:
    return RoFormerLiteTokenizer.train(TEXTS * 20, vocab_size=400, algorithm=request.param, show_progress=False)


@pytest.mark.parametrize("split_special_tokens", [False, True])
def test_token_ids_are_those_of_a_call(tokenizer, split_special_tokens):
    same_file = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, sep_token="[SEP]", pad_token="[PAD]"
    )
    for each in (tokenizer, same_file):
        each.split_special_tokens = split_special_tokens
        wanted = each(TEXTS, add_special_tokens=False)["input_ids"]
        each(TEXTS, padding=True, truncation=True, max_length=4)  # which a backend remembers
        each.backend_tokenizer.encode_special_tokens = not split_special_tokens
        assert [ids.tolist() for ids in token_ids(TEXTS, each)] == wanted
        each.split_special_tokens = False


def test_token_ids_of_a_tokenizer_that_does_more_than_its_backend():
    class Reversed(BertTokenizer):
        def __call__(self, text, *args, **kwargs):
            return super().__call__([one[::-1] for one in text], *args, **kwargs)

    words = Reversed(vocab={token: number for number, token in enumerate(["[PAD]", "[UNK]", "ab", "ba"])})
    assert [ids.tolist() for ids in token_ids(["ab", "ba ab"], words)] == [[3], [3, 2]]


@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_hold_all_tokens_and_are_alike_in_length(is_causal):
    cutter, random = BlockCutter(start=1, end=2, block_size=16, is_causal=is_causal), np.random.default_rng(0)
    for length in [0, 1, 13, 14, 15, 16, 17, 28, 29, 100, *random.integers(1, 200, 20)]:
        ids = random.integers(5, 100, length)
        pieces = [("a", piece) for piece in np.split(ids, sorted(random.integers(0, length + 1, 3)))]
        found = list(cutter.blocks(iter(pieces)))
        inner = found if is_causal else [block[1:-1] for block in found]
        whole = [1, *ids, 2] if is_causal else list(ids)
        assert [token for block in inner for token in block] == whole
        assert len(found) == ceil(len(whole) / (16 if is_causal else 14))
        sizes = [len(block) for block in found]
        assert max(sizes, default=0) <= 16 and (len(sizes) < 2 or sizes[-2] - sizes[-1] in (0, 1))
        assert is_causal or all((block[0], block[-1]) == (1, 2) for block in found)
