"""One very long word: a tokenizer is trained in linear time on it, and a tagger reads no more than it can take."""

import random
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from hf_roformer_lite import RoFormerLiteTokenizer
from hf_roformer_lite.model.tokenization_roformer_lite import untrained_backend
from hf_roformer_lite.tokenizer_training import cut_long_words
from roformer_lite.cli import main

WORDS = "the cat sees a red house".split()


def letters(count: int) -> str:
    return "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=count))


@pytest.mark.parametrize("algorithm", ["bpe", "wordpiece"])
def test_training_time_grows_with_the_word_and_not_with_its_square(algorithm):
    seconds = []
    for count in (20_000, 160_000):
        started = time.process_time()
        texts = [letters(count), *[" ".join(WORDS)] * 3]
        tokenizer = RoFormerLiteTokenizer.train(texts, vocab_size=600, algorithm=algorithm, show_progress=False)
        seconds.append(time.process_time() - started)
        assert len(tokenizer) == 600
    assert seconds[1] < 24 * seconds[0]  # eight times the text; it was 64 times the time


def test_only_long_words_are_cut_and_nothing_is_lost():
    backend = untrained_backend("bpe", True, None)
    long = letters(600)
    hyphens, spaces, han = "-" * 300, " " * 300, "红" * 300
    texts = [
        " ".join(WORDS * 100),
        f"one {long} two",
        f"one{hyphens}two",
        f"one{spaces}two",
        f"{han}。{han}",
        "一二三。" * 200,
        "1" * 1000,
    ]
    cut = [list(cut_long_words([text], backend)) for text in texts]
    assert ["".join(parts) for parts in cut] == texts
    assert [len(parts) for parts in cut] == [1, 3, 2, 2, 3, 1, 1]
    for part in (part for parts in cut for part in parts):
        assert all(len(word) <= 256 for word, _ in backend.pre_tokenizer[0].pre_tokenize_str(part))
    assert cut[1] == [f"one {long[:255]}", long[255:511], f"{long[511:]} two"]
    assert list(cut_long_words(["", "a", long[:256]], backend)) == ["", "a", long[:256]]
    assert len(list(cut_long_words([long], Tokenizer(models.BPE())))) == 3  # a backend that splits nothing itself


def test_what_is_learned_from_other_text_stays_the_same():
    texts = [" ".join(random.Random(n).choices(WORDS, k=200)) for n in range(5)]
    long = RoFormerLiteTokenizer.train([*texts, letters(300)], vocab_size=400, show_progress=False)
    assert {" " + word for word in WORDS[1:]} <= {long.decode([i]) for i in range(len(long))}
    assert long.decode(long(letters(300))["input_ids"], skip_special_tokens=True) == letters(300)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tagger")
    sentence = "Anna B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n"
    (folder / "a.iob2").write_text("\n".join([sentence] * 60))
    options = "--size tiny --config hidden_size=32 num_attention_heads=2 num_hidden_layers=1 --vocab_size 300"
    files = ["--train_file", str(folder / "a.iob2"), "--output_dir", str(folder / "m"), "--max_length", "24"]
    more = "--num_train_epochs 20 --learning_rate 3e-3 --use_cpu true --disable_tqdm true"
    assert main(["train", "tag", *files, *options.split(), *more.split()]) == 0
    return folder / "m"


def test_a_tagger_never_gets_more_than_it_takes(tagger, tmp_path, capsys, monkeypatch):
    from hf_roformer_lite import RoFormerLiteForTokenClassification

    lengths, rows = [], []
    forward = RoFormerLiteForTokenClassification.forward

    def counted(self, input_ids, **inputs):
        lengths.append(input_ids.shape[1])
        rows.append(len(input_ids))
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(RoFormerLiteForTokenClassification, "forward", counted)
    short = "Anna lives in New York"
    lines = [short, " ".join([short] * 100), letters(5000), f"Anna {letters(200)} lives"]
    (tmp_path / "x.txt").write_text("".join(line + "\n" for line in lines))
    assert main(["predict", str(tagger), "--input_file", str(tmp_path / "x.txt")]) == 0
    answers = [[part.rpartition("/") for part in line.split(" ")] for line in capsys.readouterr().out.splitlines()]
    assert [" ".join(token for token, _, _ in answer) for answer in answers] == lines  # every word has a tag
    assert max(lengths) <= 24 and max(rows) <= 8
    right = ["B-PER", "O", "O", "B-LOC", "I-LOC"]
    tags = [tag for _, _, tag in answers[1]]
    assert [tag for _, _, tag in answers[0]] == right
    assert sum(map(str.__eq__, tags, right * 100)) > 350
