"""The padding and truncation that a checkpoint's tokenizer.json contains act nowhere, and are in no
file that is written.

all-MiniLM-L6-v2, for example, pads and truncates every text to 128 tokens there.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from roformer_lite.answers import open_model
from roformer_lite.cli import main

WORDS = [f"word{number}" for number in range(40)]
SHORT = " ".join(WORDS[:5])
LONG = " ".join(WORDS[number % 40] for number in range(200))
# Each text has [CLS] and [SEP], too.
LENGTHS = [7, 202]
FIXED = {
    "padding": {
        "strategy": {"Fixed": 128},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    },
    "truncation": {
        "direction": "Right",
        "max_length": 128,
        "strategy": "LongestFirst",
        "stride": 0,
    },
}
TRAINING = "--max_length 256 --max_steps 2 --use_cpu true --disable_tqdm true".split()


def run(*command: str | Path) -> None:
    assert main(list(map(str, command))) == 0


def set_lengths(directory: Path) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **FIXED}), "utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data, and with a BERT whose tokenizer.json has a fixed length."""
    folder = tmp_path_factory.mktemp("lengths")
    rows = "".join(f"{WORDS[i]} {WORDS[i + 1]},{'ab'[i % 2]}\n" for i in range(32))
    (folder / "rows.csv").write_text("text,label\n" + rows, "utf-8")
    pairs = "".join(f"{WORDS[i]} {WORDS[i + 1]},{WORDS[i + 1]}\n" for i in range(32))
    (folder / "pairs.csv").write_text("anchor,positive\n" + pairs, "utf-8")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=256)
    tokenizer.save_pretrained(folder / "bert")
    set_lengths(folder / "bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        initializer_range=0.2,
    )
    transformers.BertModel(config).save_pretrained(folder / "bert")
    return folder


def train(folder: Path, task: str, start: str, out: str) -> Path:
    """Train from the model `start`, and return the directory of the result."""
    data = folder / ("pairs.csv" if task == "embed" else "rows.csv")
    given = ["--train_file", data, "--model_name_or_path", folder / start, *TRAINING]
    run("train", task, *given, "--output_dir", folder / out)
    return folder / out


def written(folder: Path, kind: str) -> Path:
    """A directory that a command wrote."""
    if (folder / kind).exists():
        return folder / kind
    if kind in ("embed", "classify"):
        return train(folder, kind, "bert", kind)
    if kind == "ours":
        written(folder, "convert")
        return train(folder, "classify", "convert", kind)
    # Each command reads a file with a fixed length.
    command, source = {
        "convert": ("convert", "bert"),
        "convert back": ("convert", "convert"),
        "export": ("export", "ours"),
    }[kind]
    given = shutil.copytree(written(folder, source), folder / f"for {kind}")
    set_lengths(given)
    run(command, given, folder / kind)
    return folder / kind


EXPORTED = pytest.param("export", marks=pytest.mark.slow)


@pytest.mark.parametrize("kind", ["embed", "classify", "convert", "ours", EXPORTED, "convert back"])
def test_no_file_has_a_length_of_another_training(kind, folder):
    directory = written(folder, kind)
    by_tokenizers = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert by_tokenizers.padding is None
    assert by_tokenizers.truncation is None
    alone = [by_tokenizers.encode(text).ids for text in (SHORT, LONG)]
    assert [len(ids) for ids in alone] == LENGTHS
    assert [found.ids for found in by_tokenizers.encode_batch([SHORT, LONG])] == alone
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    assert "max_length" not in tokenizer.init_kwargs
    assert [tokenizer(text)["input_ids"] for text in (SHORT, LONG)] == alone
    assert tokenizer([SHORT, LONG])["input_ids"] == alone
    padded = tokenizer([SHORT, LONG], padding=True)
    assert [sum(mask) for mask in padded["attention_mask"]] == LENGTHS
    assert {len(ids) for ids in padded["input_ids"]} == {max(LENGTHS)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classify", "ours"])
def test_classifiers_read_the_whole_text_alone_and_in_a_batch(kind, folder):
    directory = written(folder, kind)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    tokens = Tokenizer.from_file(str(directory / "tokenizer.json"))
    with torch.inference_mode():
        rows = [torch.tensor([tokens.encode(text).ids]) for text in (SHORT, LONG)]
        logits = [model(ids, token_type_ids=torch.zeros_like(ids)).logits[0] for ids in rows]
    expected = [own.softmax(dim=-1).tolist() for own in logits]
    engines = {"torch": directory}
    if kind == "ours":
        engines["onnx"] = written(folder, "export")
    for engine, place in engines.items():
        saved = open_model(place, "cpu", engine=engine)
        for batch_size in (1, 2):
            answers = saved.answers([SHORT, LONG], batch_size)
            found = [[answer["a"], answer["b"]] for answer in answers]
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_vectors_are_those_of_the_whole_text(folder):
    """They are the means of the states of all tokens."""
    directory = written(folder, "embed")
    model = transformers.AutoModel.from_pretrained(directory).eval()
    tokens = Tokenizer.from_file(str(directory / "tokenizer.json"))
    with torch.inference_mode():
        expected = [
            model(torch.tensor([tokens.encode(text).ids])).last_hidden_state[0].mean(dim=0)
            for text in (SHORT, LONG)
        ]
    for own, text in zip(expected, (SHORT, LONG), strict=True):
        found = SentenceTransformer(str(directory), device="cpu").encode(text)
        np.testing.assert_allclose(found, own, rtol=0, atol=1e-5)
    saved = open_model(directory, "cpu")
    for batch_size in (1, 2):
        answers = saved.answers([SHORT, LONG], batch_size)
        found = np.array([answer["embedding"] for answer in answers])
        np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-5)
