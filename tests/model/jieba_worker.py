"""Tokenizes lines in forks and threads of this process: `python jieba_worker.py VOCABULARY LINES`.

Vocabulary, lines and the answers that are printed are JSON. It is no part of a test's own process, because forks take
over locks as they are, also those that threads of other tests and libraries hold at that moment: threads come last.
"""

import json
import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from torch.utils.data import DataLoader
from transformers import BatchEncoding

from hf_roformer_lite.model.tokenization_jieba import RoFormerLiteJiebaTokenizer


def ids_of(tokenizer: RoFormerLiteJiebaTokenizer, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


def encode_column(tokenizer: RoFormerLiteJiebaTokenizer, rows: dict[str, list[str]]) -> BatchEncoding:
    return tokenizer(rows["text"])


def by_threads(tokenizer: RoFormerLiteJiebaTokenizer, lines: list[str]) -> list[list[int]]:
    """Each reads what the backend alone knows, while others change the backend."""
    with ThreadPoolExecutor(3) as pool:
        rounds = list(pool.map(lambda _: [encoding.ids for encoding in tokenizer(lines).encodings], range(30)))
    assert all(one == rounds[0] for one in rounds)
    return rounds[0]


def by_pool(tokenizer: RoFormerLiteJiebaTokenizer, lines: list[str]) -> list[list[int]]:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(partial(ids_of, tokenizer), lines)


def by_map(tokenizer: RoFormerLiteJiebaTokenizer, lines: list[str]) -> list[list[int]]:
    import datasets

    rows = datasets.Dataset.from_dict({"text": lines})
    return rows.map(partial(encode_column, tokenizer), batched=True, num_proc=2)["input_ids"][:]


def by_loader(tokenizer: RoFormerLiteJiebaTokenizer, lines: list[str]) -> list[dict[str, Any]]:
    collate = partial(tokenizer, padding=True, return_tensors="pt")
    batches = DataLoader(lines, batch_size=5, num_workers=2, collate_fn=collate)
    return [{name: value.tolist() for name, value in batch.items()} for batch in batches]


WAYS = {"pool": by_pool, "map": by_map, "loader": by_loader, "threads": by_threads}


def main(vocabulary: str, given: str) -> None:
    tokenizer, lines = RoFormerLiteJiebaTokenizer(json.loads(vocabulary)), json.loads(given)
    tokenizer(lines)  # so that the forks take over one that has been used
    print(json.dumps({name: way(tokenizer, lines) for name, way in WAYS.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
