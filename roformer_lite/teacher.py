"""What a small model takes over from a teacher, a model of sentence-transformers, before its
training begins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from .errors import InputError
from .saved_model import check_shards, naming, sentence_modules

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

_BATCH = 1024  # tokens


def open_teacher(name: str) -> SentenceTransformer:
    """The model of `--teacher`, a directory or a name on the Hub."""
    if os.path.isdir(name):
        check_shards(name)
        sentence_modules(name)
    from sentence_transformers import SentenceTransformer

    with naming(f"--teacher {name}"):
        return SentenceTransformer(name, local_files_only=os.path.isdir(name))


def principal_axes(vectors: Dataset, width: int) -> np.ndarray:
    """The directions `(given, width)` in which the vectors of the column `label` are largest,
    largest first.

    Of all projections to so many numbers, that on these keeps most of the products of all pairs of
    vectors.
    """
    given = len(vectors[0]["label"])
    products = np.zeros((given, given))
    for batch in vectors.iter(batch_size=10_000):
        products += batch["label"].T @ batch["label"]
    return np.linalg.eigh(products)[1][:, ::-1][:, :width].astype(np.float32)


@torch.no_grad()
def take_over_tokens(embedding: nn.Embedding, teacher: SentenceTransformer) -> None:
    """Let the vectors of tokens begin as what the teacher makes of each token alone, on their
    principal axes.

    The means of such vectors are embeddings of texts already (Tulkens & van Dongen 2024, Model2Vec,
    https://github.com/MinishLab/model2vec), so that the training need not learn again what words
    mean. They are scaled to the size of the random numbers that they replace: ten times as large
    the model learnt no better than from those.

    Args:
        embedding: Of a new model with the teacher's tokenizer, `(tokens, width)`. What is wider
            than the teacher's vectors keeps its random numbers.
        teacher: Gives the vectors.
    """
    tokenizer, tokens = teacher.eval().tokenizer, embedding.num_embeddings
    # which tells what stands before and after a text
    word = tokenizer("a", return_special_tokens_mask=True)
    inside = [at for at, is_special in enumerate(word["special_tokens_mask"]) if not is_special]
    if not inside:
        raise InputError(
            "--teacher: its tokenizer makes nothing of the text 'a'; give --vocab_size for a new tokenizer"
        )
    before, behind = word["input_ids"][: inside[0]], word["input_ids"][inside[-1] + 1 :]
    # (tokens, 1 + special ones)
    alone = torch.tensor([[*before, token, *behind] for token in range(tokens)])
    vectors = torch.cat(
        [
            teacher({"input_ids": part, "attention_mask": torch.ones_like(part)})[
                "sentence_embedding"
            ]
            for part in alone.to(teacher.device).split(_BATCH)
        ]
    ).double()  # (tokens, teacher's width)
    vectors = nn.functional.normalize(vectors, dim=-1)
    vectors = vectors - vectors.mean(dim=0)
    axes = torch.linalg.eigh(vectors.T @ vectors)[1].flip(1)  # the largest first
    vectors = (vectors @ axes)[:, : embedding.embedding_dim]  # (tokens, width)
    embedding.weight[:, : vectors.shape[1]] = (
        vectors * (embedding.weight.std() / vectors.std())
    ).to(embedding.weight)
