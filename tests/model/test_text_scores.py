"""Tests of the scores of n-grams that classifiers and taggers add to the logits of the encoder."""

import re
from collections.abc import Iterable
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from many_tokenizers import sentencepiece_unigram
from transformers import AutoModelForSequenceClassification

import hf_roformer_lite as rl
from hf_roformer_lite.model.ngram_scores import RoFormerLiteDocumentScores, RoFormerLiteTextScores
from hf_roformer_lite.model.tag_chain import (
    messages_of_neighbours,
    pass_along_row,
    pass_along_sentences,
)
from hf_roformer_lite.model.words_of_tokens import has_previous
from roformer_lite.text_scores.fit import fit_document_scores, fit_word_scores, read
from roformer_lite.text_scores.token_bytes import token_bytes
from roformer_lite.text_scores.weights import Split, best_weights

TEXTS = [
    "A fine “film”, truly fine!",
    "not worth 90 minutes of anyone's life",
    "这部电影很好看，强烈推荐。",
    "Fine music and ДЛИННЫЕ слова",
    "a mixed bag: 好 and bad 😀",
    "",
]
WORD = re.compile(
    r"[\x80-\xbf\u2000-\u9fff\uf000-\U0010ffff]|[a-z0-9\xc0-\u1fff\ua000-\uefff]+|[!-/:-@\[-`{-~]"
)


def _ngrams_of(text: str) -> set[tuple]:
    """Find the n-grams that the docstring of `RoFormerLiteDocumentScores` promises, in a string."""
    lowered = "".join(letter.lower() if letter.isascii() else letter for letter in text)
    words = [word.encode() for word in WORD.findall(lowered)]
    found: set[tuple] = {("word", word) for word in words}
    found |= {("pair", *pair) for pair in pairwise(words)}
    found |= {("three", *three) for three in zip(words, words[1:], words[2:], strict=False)}
    for word in words:
        if len(word) > 1:
            found |= _parts_of(word)
    return found


def _parts_of(word: bytes) -> set[tuple]:
    """Find the n-grams of bytes in a word, and those at its beginning and its end."""
    found: set[tuple] = set()
    for n in (2, 3, 4, 5):
        found |= {("part", word[i : i + n]) for i in range(len(word) - n + 1)}
    for n in (1, 2, 3, 4):
        if n <= len(word):
            found |= {("first", word[:n]), ("last", word[-n:])}
    return found


def _tokenizer(algorithm: str, vocab_size: int = 330) -> rl.RoFormerLiteTokenizer:
    return rl.RoFormerLiteTokenizer.train(
        TEXTS * 3, vocab_size=vocab_size, algorithm=algorithm, min_frequency=1, show_progress=False
    )


def _scores(tokenizer: rl.RoFormerLiteTokenizer, labels: int = 3) -> RoFormerLiteDocumentScores:
    config = rl.RoFormerLiteConfig(
        vocab_size=len(tokenizer), classifier_text_features=8, num_labels=labels
    )
    scores = RoFormerLiteDocumentScores(config, labels)
    scores.set_token_bytes(token_bytes(tokenizer))
    return scores


def _found(scores: RoFormerLiteDocumentScores, examples: Iterable[list[int]]) -> list[set[int]]:
    """Compute the hashes of the n-grams of each example, for all examples in one call."""
    examples = list(examples)
    ids = torch.tensor([token for example in examples for token in example])
    documents = torch.repeat_interleave(torch.tensor([len(example) for example in examples]))
    keys, owners = scores.find_features(scores.words_of(ids, documents))
    return [set(keys[owners == number].tolist()) for number in range(len(examples))]


def test_ngrams_are_those_of_the_text():
    """Token ids have as many n-grams as the text, and two texts share as many as their token ids.

    The n-grams don't depend on the tokenizer.
    """
    tokenizers = [
        _tokenizer("bpe"),
        sentencepiece_unigram(TEXTS),
        _tokenizer("bpe", vocab_size=420),
    ]
    found = [_found(_scores(tokenizer), tokenizer(TEXTS)["input_ids"]) for tokenizer in tokenizers]
    assert found[0] == found[1] == found[2]
    # The tokenizers do differ, because they make different numbers of tokens.
    assert len({len(sum(tokenizer(TEXTS)["input_ids"], [])) for tokenizer in tokenizers}) == 3
    expected = [_ngrams_of(text) for text in TEXTS]
    for i, j in product(range(len(TEXTS)), repeat=2):
        found_in_both = found[0][i] & found[0][j]
        assert len(found_in_both) == len(expected[i] & expected[j]), (TEXTS[i], TEXTS[j])


def _fitted() -> tuple[rl.RoFormerLiteForSequenceClassification, rl.RoFormerLiteTokenizer]:
    torch.manual_seed(0)
    tokenizer = _tokenizer("bpe")
    config = rl.RoFormerLiteConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), num_labels=2, problem_type="single_label_classification"
    )
    model = rl.RoFormerLiteForSequenceClassification(config).eval()
    examples = tokenizer(TEXTS * 2)["input_ids"]
    answers = np.array([0, 1, 0, 0, 1, 1] * 2)
    model.add_text_scores(fit_document_scores(token_bytes(tokenizer), examples, answers, config))
    return model, tokenizer


def _scores_alone(scores: RoFormerLiteTextScores, examples: list[list[int]]) -> torch.Tensor:
    return torch.cat([scores.score(words, rows) for words, _, rows in read(scores, examples)])


@torch.no_grad()
def test_logits_are_the_sum_with_padding_packing_and_after_saving(tmp_path):
    model, tokenizer = _fitted()
    examples = tokenizer(TEXTS)["input_ids"]
    ngrams = _scores_alone(model.text_scores, examples)
    assert ngrams.std(0).min() > 0.1
    # The last text is empty, and has no n-grams.
    assert torch.equal(ngrams[-1], model.text_scores.bias)
    scores = model.text_scores
    model.text_scores = None
    alone = torch.cat([model(input_ids=torch.tensor([ids])).logits for ids in examples])
    model.text_scores = scores
    expected = alone + ngrams

    for side in ("right", "left"):
        padded = tokenizer(TEXTS, padding=True, padding_side=side, return_tensors="pt")
        torch.testing.assert_close(model(**padded).logits, expected, atol=1e-5, rtol=0)
        dense = model(**padded, output_hidden_states=True).logits
        torch.testing.assert_close(dense, expected, atol=1e-5, rtol=0)
    packed = torch.tensor([[token for ids in examples for token in ids]])
    borders = torch.tensor([0, *np.cumsum([len(ids) for ids in examples])], dtype=torch.int32)
    torch.testing.assert_close(
        model(input_ids=packed, cu_seq_lens_q=borders).logits, expected, atol=1e-5, rtol=0
    )

    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    padded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert torch.equal(again(**padded).logits, model(**padded).logits)


def _best_sequences(scores: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """Compute the score `(W, K)` of the best sequence with each tag of each word, by trying all."""
    words, labels = scores.shape
    best = torch.full_like(scores, -torch.inf)
    for tags in product(range(labels), repeat=words):
        of_words = sum(scores[i, tag] for i, tag in enumerate(tags))
        of_neighbours = sum(transitions[pair] for pair in pairwise(tags))
        score = of_words + of_neighbours
        for i, tag in enumerate(tags):
            best[i, tag] = max(best[i, tag], score)
    return best


@torch.no_grad()
def test_tags_of_a_tagger_are_those_of_the_best_sequence():
    torch.manual_seed(0)
    texts = ["Fine music!", "90 minutes of anyone's", "电影很好", "film"]
    tokenizer = _tokenizer("bpe")
    config = rl.RoFormerLiteConfig.from_preset("tiny", vocab_size=len(tokenizer), num_labels=3)
    model = rl.RoFormerLiteForTokenClassification(config).eval()
    examples = tokenizer(texts)["input_ids"]
    answers = [np.array([-100, *(np.arange(len(ids) - 2) % 3), -100]) for ids in examples]
    scores = fit_word_scores(token_bytes(tokenizer), examples, answers, config)
    scores.transitions.normal_()
    expected = []
    for ids in examples:
        logits = model(input_ids=torch.tensor([ids])).logits[0] + _scores_alone(scores, [ids])
        first = scores.words_of(torch.tensor(ids), torch.zeros(len(ids), dtype=torch.long)).is_first
        logits[first] = _best_sequences(logits[first], scores.transitions)
        logits[first] -= logits[first].amax(-1, keepdim=True)
        expected.append((logits, first))
    model.add_text_scores(scores)

    def check(found: torch.Tensor, wanted: torch.Tensor, first: torch.Tensor) -> None:
        found = torch.where(first[:, None], found - found.amax(-1, keepdim=True), found)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)

    for side in ("right", "left"):
        padded = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
        for options in ({}, {"output_hidden_states": True}):
            logits = model(**padded, **options).logits
            masks = padded["attention_mask"].bool()
            for row, mask, (wanted, first) in zip(logits, masks, expected, strict=True):
                check(row[mask], wanted, first)
    packed = torch.tensor([[token for ids in examples for token in ids]])
    borders = torch.tensor([0, *np.cumsum([len(ids) for ids in examples])], dtype=torch.int32)
    logits = model(input_ids=packed, cu_seq_lens_q=borders).logits[0]
    check(
        logits,
        torch.cat([wanted for wanted, _ in expected]),
        torch.cat([first for _, first in expected]),
    )


def test_embeddings_can_be_resized(tmp_path):
    model, tokenizer = _fitted()
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    before = model(**inputs).logits
    model.resize_token_embeddings(len(tokenizer) + 8)
    torch.testing.assert_close(model(**inputs).logits, before)
    model(input_ids=torch.tensor([[len(tokenizer) + 7]]))
    model.save_pretrained(tmp_path)
    AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_texts_that_tell_nothing_get_scores_that_say_nothing():
    """The fit at the end of a training must not fail where, for example, all texts are equal."""
    tokenizer = _tokenizer("bpe")
    config = rl.RoFormerLiteConfig(
        vocab_size=len(tokenizer), num_labels=2, problem_type="single_label_classification"
    )
    examples = tokenizer(TEXTS[:1] * 40)["input_ids"]
    answers = np.arange(40) % 2
    scores = fit_document_scores(token_bytes(tokenizer), examples, answers, config)
    assert _scores_alone(scores, examples).abs().max() < 0.1


def test_weights_make_the_loss_least():
    generator = np.random.default_rng(0)
    answers = generator.integers(0, 3, 400)
    right = np.eye(3)[answers] + generator.normal(size=(400, 3))
    useless = generator.normal(size=(400, 3))

    def weights(logits: np.ndarray, text_scores: np.ndarray) -> tuple[float, ...]:
        tensors = [torch.from_numpy(array) for array in (logits, text_scores, answers)]
        split = Split(*tensors, measure=lambda joint: {})
        return best_weights(split, "single_label_classification")

    encoder, ngrams = weights(right, useless)
    # The logits are the log-odds of the classes, because the noise has variance 1.
    assert encoder == pytest.approx(1, abs=0.25)
    assert ngrams < 0.15
    assert weights(useless, 2 * right)[1] == pytest.approx(0.5, abs=0.15)


def _along(scores: torch.Tensor, transitions: torch.Tensor, join) -> torch.Tensor:
    """Add the forward and backward scores of each word of one sentence, without its own `scores`.

    The recursions are those of Rabiner (1989), Proceedings of the IEEE 77.2.
    """
    forward = [torch.zeros_like(scores[0])]
    backward = [torch.zeros_like(scores[0])]
    for i in range(1, len(scores)):
        forward.append(join((scores[i - 1] + forward[-1])[:, None] + transitions, 0))
    for i in range(len(scores) - 2, -1, -1):
        backward.insert(0, join(transitions + (scores[i + 1] + backward[0])[None], 1))
    return torch.stack(forward) + torch.stack(backward)


def _viterbi(scores: np.ndarray, transitions: np.ndarray) -> list[int]:
    """Find the best sequence of tags of a sentence (Forney 1973, Proceedings of the IEEE 61.3)."""
    best = scores[0]
    came_from = []
    for score in scores[1:]:
        pairs = best[:, None] + transitions
        came_from.append(pairs.argmax(axis=0))
        best = pairs.max(axis=0) + score
    tags = [int(best.argmax())]
    for places in reversed(came_from):
        tags.append(int(places[tags[-1]]))
    return tags[::-1]


@pytest.mark.parametrize("join", [torch.amax, torch.logsumexp])
@pytest.mark.parametrize("seed", range(3))
def test_messages_are_those_of_the_recursions(join, seed):
    """This also holds in long sentences, where strong transitions reach far."""
    torch.manual_seed(seed)
    lengths = torch.randint(1, 301, (9,)).tolist() + [1, 2, 65]
    num_tags = 2 + 2 * seed
    scores = [torch.randn(length, num_tags, dtype=torch.float64) for length in lengths]
    transitions = 4 * torch.randn(num_tags, num_tags, dtype=torch.float64)
    documents = torch.repeat_interleave(2 * torch.arange(len(lengths)), torch.tensor(lengths))
    found = messages_of_neighbours(torch.cat(scores), transitions, documents, join)
    expected = torch.cat([_along(sentence, transitions, join) for sentence in scores])
    torch.testing.assert_close(found.log_softmax(-1), expected.log_softmax(-1), atol=1e-10, rtol=0)
    assert found[-68].tolist() == [0] * num_tags, "the only word of a sentence has no neighbours"
    if join is torch.amax:
        tags = (torch.cat(scores) + found).argmax(-1).tolist()
        best = []
        for sentence in scores:
            best += _viterbi(sentence.numpy(), transitions.numpy())
        assert tags == best


@pytest.mark.parametrize("num_tags", [3, 50])
def test_messages_of_traced_graphs_are_the_same(num_tags):
    torch.manual_seed(0)
    lengths = torch.tensor([300, 1, 40, 2] if num_tags == 3 else [9, 1])
    documents = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    scores = torch.randn(len(documents), num_tags, dtype=torch.float64)
    transitions = 4 * torch.randn(num_tags, num_tags, dtype=torch.float64)
    has_left = has_previous(documents)
    for join in (torch.amax, torch.logsumexp):
        given = (scores, transitions, has_left, join)
        torch.testing.assert_close(pass_along_row(*given), pass_along_sentences(*given))


def _noisy_rows(number: int, labels: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Make texts with a word for one label and a word for another.

    The other label is the right one in a third of the texts.
    """
    generator = np.random.default_rng(seed)
    words = np.array("fine music film mixed good bad lovely dull".split())
    true = generator.integers(0, labels, number)
    other = generator.integers(0, labels, number)
    texts = [f"{words[a]} {words[b]} {words[a]}" for a, b in zip(true, other, strict=True)]
    return texts, np.where(generator.random(number) < 0.33, other, true)


@pytest.mark.parametrize("labels", [2, 4])
def test_scores_that_answer_alone_are_probabilities(labels):
    """With calibration, no other scale of the logits fits held-out rows better.

    The labels of these rows are partly random, so that no probability should be near 1. Without
    calibration, another scale does fit better.
    """
    tokenizer = _tokenizer("bpe")
    config = rl.RoFormerLiteConfig(
        vocab_size=len(tokenizer), num_labels=labels, problem_type="single_label_classification"
    )
    texts, answers = _noisy_rows(400, labels, seed=0)
    examples = tokenizer(texts)["input_ids"]
    texts, true = _noisy_rows(2000, labels, seed=1)
    asked = tokenizer(texts)["input_ids"]
    losses = []
    for calibrates in (False, True):
        scores = fit_document_scores(
            token_bytes(tokenizer), examples, answers, config, calibrates=calibrates
        )
        logits = _scores_alone(scores, asked).detach()
        of_scales = [
            torch.nn.functional.cross_entropy(scale * logits, torch.from_numpy(true)).item()
            for scale in np.geomspace(0.1, 10, 41)
        ]
        losses.append((of_scales[20], min(of_scales)))
    assert losses[1][0] < 1.01 * losses[1][1]
    assert losses[0][0] > 1.05 * losses[0][1]


def test_weights_of_n_grams_have_length_one_in_half_precision():
    """A sum of 2,000 squares in bfloat16 would stop growing at a fraction of its value."""
    config = rl.RoFormerLiteConfig.from_preset("tiny", classifier_text_features=2000)
    scores = RoFormerLiteDocumentScores(config, num_labels=2).bfloat16()
    rows = torch.arange(2000)
    weights = scores.weigh(
        rows=rows,
        counts=torch.ones_like(rows),
        owners=torch.zeros_like(rows),
        num_owners=1,
    )
    assert weights.float().norm().item() == pytest.approx(1, abs=0.01)


def test_tag_scores_under_autocast():
    fields = {"vocab_size": 50, "num_labels": 3, "classifier_text_features": 8}
    config = rl.RoFormerLiteConfig.from_preset("tiny", **fields)
    model = rl.RoFormerLiteForTokenClassification(config).eval()
    ids = torch.randint(5, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with torch.autocast("cpu", torch.bfloat16):
            found = model(input_ids=ids).logits
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=2e-2)
