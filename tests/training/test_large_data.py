"""Large text is divided into blocks, and very long words are cut."""

import random
import time
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from conftest import assert_equal
from datasets import Dataset, Features, Image, Value
from program import answered, write_rows
from saved_models import TEXTS, save_model
from tokenizers import normalizers

import hf_roformer_lite as rl
from hf_roformer_lite.model.tokenization_roformer_lite import untrained_backend
from roformer_lite.data.blocks import BlockCollator, blocks, cut_blocks
from roformer_lite.data.splits import hold_out, load_splits
from roformer_lite.errors import InputError
from roformer_lite.options.tasks import ClassifyDataArguments
from roformer_lite.recipes import RECIPES


def test_splits_of_a_data_set(tmp_path):
    """A split that was named must exist, and a fraction to hold out replaces that of the data."""
    (tmp_path / "data").mkdir()
    for split, number in (("train", 40), ("validation", 4)):
        rows = [{"text": f"line {n}", "label": f"{n % 2}"} for n in range(number)]
        write_rows(tmp_path / "data" / f"{split}.jsonl", rows)

    def sizes(**options) -> dict[str, int]:
        arguments = ClassifyDataArguments(dataset_name=str(tmp_path / "data"), **options)
        cache = Path(mkdtemp(dir=tmp_path))
        reader = RECIPES["classify"](arguments).reader
        rows = hold_out(reader, arguments, load_splits(reader, arguments, cache), seed=0)
        return {split: len(dataset) for split, dataset in rows.items()}

    assert sizes() == {"train": 40, "validation": 4}
    assert sizes(validation_fraction=0.25) == {"train": 30, "validation": 10}
    assert sizes(validation_fraction=0) == {"train": 40}
    for name in ("validation_split", "test_split"):
        with pytest.raises(InputError, match="has no split 'dev'; its splits are train, valid"):
            sizes(**{name: "dev"})


def test_pictures_of_a_data_set_are_not_opened(tmp_path):
    columns = {"text": ["one", "two"], "label": ["a", "b"], "image": [{"bytes": b"damaged"}] * 2}
    features = {"text": Value("string"), "label": Value("string"), "image": Image()}
    (tmp_path / "data").mkdir()
    data = Dataset.from_dict(columns, features=Features(features))
    data.to_parquet(tmp_path / "data" / "train.parquet")
    arguments = ClassifyDataArguments(dataset_name=str(tmp_path / "data"))
    rows = load_splits(RECIPES["classify"](arguments).reader, arguments, tmp_path / "rows")
    assert rows["train"]["text"][:] == ["one", "two"]


def test_a_split_without_labels_is_left_out(tmp_path, caplog):
    """The organisers of a benchmark keep the labels of its test split."""
    (tmp_path / "data").mkdir()
    for split, labels in (("train", [0, 1] * 20), ("test", [-1] * 5)):
        rows = [{"text": f"line {n}", "label": n} for n in labels]
        write_rows(tmp_path / "data" / f"{split}.jsonl", rows)
    arguments = ClassifyDataArguments(dataset_name=str(tmp_path / "data"), validation_fraction=0)
    rows = load_splits(RECIPES["classify"](arguments).reader, arguments, tmp_path / "rows")
    assert list(rows) == ["train"]
    assert "test" in caplog.text and "--test_split" in caplog.text


@pytest.mark.parametrize("is_causal", [False, True])
def test_blocks_hold_all_tokens_and_are_alike_in_length(is_causal):
    documents = {f"d{n}": list(range(100, 100 + n)) for n in (1, 7, 8, 9, 10, 17, 55)}
    pieces = [
        (name, ids[at : at + 3]) for name, ids in documents.items() for at in range(0, len(ids), 3)
    ]
    made = list(cut_blocks(pieces, start=1, end=2, block_size=10, is_causal=is_causal))
    assert max(map(len, made)) <= 10
    tokens = []
    for block in made:
        tokens += [token for token in block if token > 2]
    assert tokens == [token for ids in documents.values() for token in ids]
    if not is_causal:
        assert all(block[0] == 1 and block[-1] == 2 for block in made)


def test_every_batch_has_labels_at_its_text_alone():
    tokenizer = rl.RoFormerLiteTokenizer.train(["bale and born"] * 9, vocab_size=300)
    collator = BlockCollator(tokenizer, mlm_probability=1e-9)
    row = tokenizer("bale")
    for seed in range(20):
        torch.manual_seed(seed)
        batch = collator([dict(row)])
        (place,) = (batch["labels"][0] != -100).nonzero()
        assert batch["input_ids"][0, place] == tokenizer.mask_token_id
        label = batch["labels"][0, place]
        assert label == row["input_ids"][place] and label not in tokenizer.all_special_ids
    # The end of a document has a label and padding has none, even if one token is used for both.
    tokenizer.pad_token = tokenizer.sep_token
    # Many tokenizers put a space before each text, which a line of a document is not.
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    recipe = RECIPES["causal"](RECIPES["causal"].options_class(dataset_name="any"))
    rows = Dataset.from_dict({"document": [1, 1, 2], "text": ["bale\n", "born\n", "bale"]})
    batch = recipe.collator(None, tokenizer)(list(blocks(rows, tokenizer, 16, True)))
    assert_equal(batch["labels"] == -100, batch["attention_mask"] == 0)
    assert tokenizer.decode(batch["input_ids"][0], skip_special_tokens=True) == " bale\nborn\n"


def letters(count: int) -> str:
    return "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=count))


def test_only_long_words_are_cut():
    """The parts of a long word are words of their own in training, and only there."""
    whole = letters(1024)
    tokenizer = rl.RoFormerLiteTokenizer.train([f"{whole}zy"] * 2, vocab_size=3000)
    for text, number in ((whole, 1), ("zy", 1), (f"{whole}zy", 2)):
        assert len(tokenizer.tokenize(text)) == number
    (word,) = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(f"{whole}zy")
    assert word[1] == (0, 1026)


@pytest.mark.parametrize("splits", [True, False])
def test_a_long_line_is_trained_on_in_a_moment(splits):
    """Without cutting, this would take minutes."""
    backend = untrained_backend("bpe", lowercase=True, strip_accents=None)
    if not splits:
        backend.pre_tokenizer = None
    tokenizer = rl.RoFormerLiteTokenizer(tokenizer_object=backend)
    started = time.process_time()
    new = tokenizer.train_new_from_iterator([letters(400_000)], 700)
    assert time.process_time() - started < 20
    assert type(new.backend_tokenizer.pre_tokenizer) is type(backend.pre_tokenizer)


def test_a_tagger_never_gets_more_than_it_takes(tmp_path, monkeypatch):
    model = save_model("tag", tmp_path / "m")
    shapes = []
    forward = rl.RoFormerLiteForTokenClassification.forward

    def noted(self, input_ids, **inputs):
        shapes.append(input_ids.shape)
        return forward(self, input_ids=input_ids, **inputs)

    monkeypatch.setattr(rl.RoFormerLiteForTokenClassification, "forward", noted)
    lines = [TEXTS[3], " ".join(TEXTS * 50), letters(5000), f"Anna {letters(200)} lives"]
    for line, answer in zip(lines, answered(model, lines), strict=True):
        # Every word has a tag, because the tokens of the answer make up the line.
        assert [word.rpartition("/")[0] for word in answer.split(" ")] == line.split(" ")
    assert max(length for _, length in shapes) <= 48 and max(rows for rows, _ in shapes) <= 8
