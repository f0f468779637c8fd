"""Models with a table of positions read texts that are too long in overlapping windows.

The expected numbers come from the stock model and from windows that are cut out of the token ids
here. That a training measures the same answers is tested in test_one_way_to_answer.py.
"""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import assert_close, build, stack_config
from program import run, write_json
from saved_models import save_bert

import hf_roformer_lite as rl
from roformer_lite.answers import open_model

WORDS = [f"word{number}" for number in range(30)]
# Two of them are [CLS] and [SEP].
POSITIONS = 18
ROOM = 16
OVERLAP = 4
TAGS = ["O", "B-PER", "I-PER"]


def text_of(length: int) -> str:
    draw = random.Random(length)
    return " ".join(draw.choice(WORDS) for _ in range(length))


# In tokens, without [CLS] and [SEP]: shorter than a window, a whole one, and several.
TEXTS = [text_of(length) for length in (3, ROOM, ROOM + 1, 100, 45)]


def bert(kind: str, folder: Path) -> Path:
    labels = TAGS if kind == "TokenClassification" else list("abc")
    model_class = getattr(transformers, f"BertFor{kind}")
    sizes = {"num_hidden_layers": 2, "max_position_embeddings": POSITIONS}
    return save_bert(folder, WORDS, model_class, id2label=dict(enumerate(labels)), **sizes)


def windows(ids: list[int]) -> list[tuple[int, list[int]]]:
    """The beginning and the token ids of each window."""
    # No window begins where the one before it ends the text.
    last = max(1, len(ids) - OVERLAP)
    return [(begin, ids[begin : begin + ROOM]) for begin in range(0, last, ROOM - OVERLAP)]


def logits_of_windows(directory: Path, text: str) -> list[tuple[int, torch.Tensor]]:
    """The beginning and the logits of each window, by the stock class."""
    config = transformers.AutoConfig.from_pretrained(directory)
    name = config.architectures[0]
    model_class = getattr(transformers, name, None) or getattr(rl, name)
    model = model_class.from_pretrained(directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for begin, part in windows(tokenizer.convert_tokens_to_ids(text.split())):
        ids = torch.tensor([[tokenizer.cls_token_id, *part, tokenizer.sep_token_id]])
        with torch.inference_mode():
            found.append((begin, model(input_ids=ids).logits[0].double()))
    return found


def assert_means_of_windows(directory: Path) -> None:
    expected = []
    for text in TEXTS:
        logits = torch.stack([own for _, own in logits_of_windows(directory, text)])
        expected.append(logits.mean(dim=0).softmax(dim=-1).tolist())
    saved = open_model(directory, "cpu")
    for batch_size in (1, 5):
        for order in (1, -1):
            answers = saved.answers(TEXTS[::order], batch_size)
            found = [[answer[label] for label in "abc"] for answer in answers]
            assert_close(found, expected[::order])


def test_a_classifier_averages_the_logits_of_windows(tmp_path, caplog):
    assert_means_of_windows(bert("SequenceClassification", tmp_path / "bert"))
    assert "truncated" not in caplog.text


@pytest.mark.slow
def test_a_graph_reads_the_same_windows(tmp_path):
    config = stack_config(
        vocab_size=5 + len(WORDS),
        position_embedding_type="learned",
        max_position_embeddings=POSITIONS,
        id2label=dict(enumerate("abc")),
    )
    # A model of this package with the tokenizer of a BERT.
    directory = save_bert(tmp_path / "ours", WORDS, max_position_embeddings=POSITIONS)
    build(rl.RoFormerLiteForSequenceClassification, config).save_pretrained(directory)
    assert_means_of_windows(directory)
    run("export", directory, tmp_path / "graph")
    torch_answers = open_model(directory, "cpu").answers(TEXTS, 2)
    graph_answers = open_model(tmp_path / "graph").answers(TEXTS, 2)
    for ours, theirs in zip(torch_answers, graph_answers, strict=True):
        assert theirs == pytest.approx(ours, abs=1e-5)


def test_pairs_are_truncated(tmp_path, caplog):
    directory = bert("SequenceClassification", tmp_path / "pairs")
    write_json(directory / "results.json", {"task": "classify", "settings": {"pairs": True}})
    open_model(directory, "cpu").answers([[TEXTS[0], TEXTS[3]]], 1)
    assert f"1 lines are truncated to {POSITIONS} tokens" in caplog.text


def test_a_tagger_takes_each_word_from_the_better_window(tmp_path):
    """A word has the logits of the window in which it is farther from an edge."""
    directory = bert("TokenClassification", tmp_path / "tagger")
    saved = open_model(directory, "cpu")
    sentences = [text.split() for text in TEXTS]
    found = saved.recipe.encoder_logits(saved, sentences)
    for words, text, own in zip(sentences, TEXTS, found, strict=True):
        best = {}
        of_windows = logits_of_windows(directory, text)
        for begin, logits in of_windows:
            # The first and the last token are [CLS] and [SEP].
            of_words = logits[1:-1].numpy()
            for place, of_word in enumerate(of_words):
                distance = min(place, len(of_words) - 1 - place)
                if distance > best.get(begin + place, (-1, None))[0]:
                    best[begin + place] = (distance, of_word)
        expected = [best[number][1] for number in range(len(words))]
        assert_close(own, np.stack(expected))
    alone = [saved.answers([words], 1)[0] for words in sentences]
    assert saved.answers(sentences, 5) == alone
