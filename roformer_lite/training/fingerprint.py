"""Fingerprints of what a training learns from, by which a continued training knows them again."""

import hashlib
import json
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .corpus.corpus import Corpus
from .corpus.stream import TextStream


def rows_fingerprint(rows: Dataset | Corpus | TextStream) -> str:
    """A hash of all rows in their order, of what they say and not of the lines they come from."""
    if isinstance(rows, Corpus | TextStream):
        return rows.digest
    digest = hashlib.blake2b(digest_size=16)
    columns = [name for name in rows.column_names if name != "origin"]
    for batch in rows.select_columns(columns).iter(batch_size=1000):
        digest.update(_as_bytes(batch))
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of everything that determines how a text is encoded."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        content = sorted(tokenizer.get_vocab().items())
    else:  # the lengths that it cuts and pads to depend on who loaded it
        content = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    return hashlib.blake2b(_as_bytes(content), digest_size=16).hexdigest()


def config_fingerprint(model: PreTrainedModel) -> str:
    """A hash of the configuration, without what saving and loading note in it."""
    noted = ("transformers_version", "_name_or_path", "architectures", "auto_map")
    fields = {name: value for name, value in model.config.to_dict().items() if name not in noted}
    return hashlib.blake2b(_as_bytes(fields), digest_size=16).hexdigest()


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()
