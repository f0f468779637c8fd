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
from program import run, train, write_rows
from saved_models import save_bert
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from roformer_lite.answers import open_model

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
TRAINING = "--max_length 256 --max_steps 2 --use_cpu --disable_tqdm"


def set_lengths(directory: Path) -> None:
    path = directory / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **FIXED}), "utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data, and with a BERT whose tokenizer.json has a fixed length."""
    folder = tmp_path_factory.mktemp("lengths")
    pairs = [(f"{WORDS[i]} {WORDS[i + 1]}", WORDS[i + 1]) for i in range(32)]
    rows = [{"text": text, "label": "ab"[i % 2]} for i, (text, _) in enumerate(pairs)]
    write_rows(folder / "classify.jsonl", rows)
    rows = [{"anchor": anchor, "positive": positive} for anchor, positive in pairs]
    write_rows(folder / "embed.jsonl", rows)
    set_lengths(save_bert(folder / "bert", WORDS, max_position_embeddings=256))
    return folder


def trained(folder: Path, task: str, start: str, out: str) -> Path:
    """Train from the model `start`, and return the directory of the result."""
    data = folder / f"{task}.jsonl"
    train(f"{task} {TRAINING}", data, folder / out, model_name_or_path=folder / start)
    return folder / out


def written(folder: Path, kind: str) -> Path:
    """A directory that a command wrote."""
    if (folder / kind).exists():
        return folder / kind
    if kind in ("embed", "classify"):
        return trained(folder, kind, "bert", kind)
    if kind == "ours":
        written(folder, "convert")
        return trained(folder, "classify", "convert", kind)
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
