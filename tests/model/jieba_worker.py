"""Tokenizes lines in forks of this process, in three ways: `python jieba_worker.py VOCABULARY LINES`, both as JSON.

Prints a JSON object with the answers. It is no part of a test's own process, because forks take over locks as they
are, also those that threads of other tests hold at that moment.
"""

import json
import multiprocessing
import sys
from functools import partial

import datasets
from torch.utils.data import DataLoader
from transformers import BatchEncoding

from hf_roformer_lite.model.tokenization_jieba import RoFormerLiteJiebaTokenizer


def ids_of(tokenizer: RoFormerLiteJiebaTokenizer, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


def encode_column(tokenizer: RoFormerLiteJiebaTokenizer, rows: dict[str, list[str]]) -> BatchEncoding:
    return tokenizer(rows["text"])


def main(vocabulary: str, given: str) -> None:
    tokenizer, lines = RoFormerLiteJiebaTokenizer(json.loads(vocabulary)), json.loads(given)
    tokenizer(lines)  # so that the forks take over one that has been used
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pooled = pool.map(partial(ids_of, tokenizer), lines)
    rows = datasets.Dataset.from_dict({"text": lines})
    mapped = rows.map(partial(encode_column, tokenizer), batched=True, num_proc=2)
    collate = partial(tokenizer, padding=True, return_tensors="pt")
    batches = DataLoader(lines, batch_size=5, num_workers=2, collate_fn=collate)
    loaded = [{name: value.tolist() for name, value in batch.items()} for batch in batches]
    print(json.dumps({"pool": pooled, "map": mapped["input_ids"][:], "loader": loaded}))


if __name__ == "__main__":
    main(*sys.argv[1:])
