"""`word_ids()` of running text: with Unigram the words of BPE, however many characters have no piece."""

import pickle

import pytest
from test_tokenization import CORPUS, ENGLISH, random_texts

from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

TEXTS = [
    "the 龘靐齉 dog",
    "龘靐",
    "我龘们靐!",
    "école ñandú x☃☃y",
    " 龘[MASK]☃☃[MASK] 龘靐",
    "[MASK]☃",
    "\u0301☃\u0301x\u0301",
    *ENGLISH,
    *random_texts(400, seed=5),
]


@pytest.fixture(scope="module")
def both() -> tuple[RoFormerLiteTokenizer, RoFormerLiteTokenizer]:
    bpe, unigram = (
        RoFormerLiteTokenizer.train(CORPUS, vocab_size=700, algorithm=name, show_progress=False)
        for name in ("bpe", "unigram")
    )
    for tokenizer in (bpe, unigram):
        tokenizer.add_tokens(["☃☃"])
    return bpe, unigram


def words_of_characters(tokenizer: RoFormerLiteTokenizer, text: str) -> list[int | None]:
    """The word of each character. White space is left out: pieces that begin with it do not count it as their own."""
    encoding = tokenizer(text)
    return [None if character.isspace() else encoding.char_to_word(i) for i, character in enumerate(text)]


def test_running_text(both):
    bpe, unigram = both
    for text in TEXTS:
        assert words_of_characters(unigram, text) == words_of_characters(bpe, text), text
        words = [word for word in unigram(text).word_ids() if word is not None]
        assert words == sorted(words) and sorted(set(words)) == list(range(len(set(words)))), text


def test_ids_and_offsets_stay(both):
    _, unigram = both
    backend = unigram.backend_tokenizer
    backend.no_padding()
    for text in TEXTS:
        old, new = backend.encode(text), unigram(text, return_offsets_mapping=True)
        assert (new["input_ids"], new["offset_mapping"]) == (old.ids, old.offsets)
        assert new.tokens() == old.tokens and pickle.loads(pickle.dumps(new)).word_ids() == new.word_ids()


def test_pairs_batches_and_overflow(both):
    _, unigram = both
    one, other = "the 龘靐齉 dog 龘靐", "龘靐 x"
    words, more = ([word for word in unigram(text).word_ids() if word is not None] for text in (one, other))
    for batch in (unigram(one, other), unigram([one], [other], padding="max_length", max_length=60)):
        assert [word for word in batch.word_ids() if word is not None] == [*words, *more]
    whole = unigram(one, add_special_tokens=False).word_ids()
    for stride in (0, 3):
        parts = unigram(
            ["dog", one, other],
            truncation=True,
            max_length=7,
            stride=stride,
            return_overflowing_tokens=True,
            return_tensors="pt",
            padding=True,
            add_special_tokens=False,
        )
        found = [
            [word for word in parts.word_ids(i) if word is not None]
            for i, sample in enumerate(parts["overflow_to_sample_mapping"])
            if sample == 1
        ]
        assert sum((part if i == 0 else part[stride:] for i, part in enumerate(found)), []) == whole
    first = unigram(one, truncation=True, max_length=7, add_special_tokens=False).encodings[0]
    assert first.word_ids == whole[:7] and first.overflowing[0].word_ids == whole[7:14]
