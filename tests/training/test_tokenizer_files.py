"""The padding and truncation that a checkpoint's tokenizer.json contains act nowhere, and are in no
file that is written.

all-MiniLM-L6-v2, for example, pads and truncates every text to 128 tokens there.
"""

import shutil
from pathlib import Path

import pytest
import transformers
from conftest import data_beside
from program import run, train, write_rows
from saved_models import save_bert
from tokenizers import Tokenizer

WORDS = [f"word{number}" for number in range(40)]
SHORT = " ".join(WORDS[:5])
LONG = " ".join(WORDS[number % 40] for number in range(200))
# Each text has [CLS] and [SEP], too.
LENGTHS = [7, 202]
TRAINING = "--max_length 256 --max_steps 2 --use_cpu"


def set_lengths(directory: Path) -> None:
    path = str(directory / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_padding(length=128)
    tokenizer.enable_truncation(128)
    tokenizer.save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data and a BERT."""
    folder = tmp_path_factory.mktemp("lengths")
    pairs = [(f"{WORDS[i]} {WORDS[i + 1]}", WORDS[i + 1]) for i in range(32)]
    rows = [{"text": text, "label": "ab"[i % 2]} for i, (text, _) in enumerate(pairs)]
    write_rows(folder / "classify.jsonl", rows)
    rows = [{"anchor": anchor, "positive": positive} for anchor, positive in pairs]
    write_rows(folder / "embed.jsonl", rows)
    save_bert(folder / "bert", WORDS, max_position_embeddings=256)
    return folder


WRITTEN = data_beside(__file__)


def written(folder: Path, kind: str) -> Path:
    """A directory that a command wrote. It has read a file with a fixed length."""
    if kind == "bert" or (folder / kind).exists():
        return folder / kind
    command, source = WRITTEN[kind]
    given = shutil.copytree(written(folder, source), folder / f"for {kind}")
    set_lengths(given)
    if command in ("convert", "export"):
        run(command, given, folder / kind)
    else:
        data = folder / f"{command}.jsonl"
        train(f"{command} {TRAINING}", data, folder / kind, model_name_or_path=given)
    return folder / kind


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "export")) for kind in WRITTEN],
)
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
