"""Initialises a small model from a teacher, a model of sentence-transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from hf_roformer_lite.conversion.checkpoint_files import check_shards

from ..errors import InputError
from ..saved.saved_model import naming, sentence_modules

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

# This many tokens are encoded at once.
BATCH_SIZE = 1024


def open_teacher(name: str) -> SentenceTransformer:
    """The model of `--teacher`, a directory or a name on the Hub."""
    from sentence_transformers import SentenceTransformer

    with naming(f"--teacher {name}"):
        if os.path.isdir(name):
            check_shards(Path(name))
            sentence_modules(name)
        return SentenceTransformer(name, local_files_only=os.path.isdir(name))


def principal_axes(vectors: Dataset, width: int) -> np.ndarray:
    """The principal axes `(given, width)` of the vectors in the column `label`, with the largest
    first.

    Of all projections to `width` dimensions, the projection onto these axes best preserves the
    products of all pairs of vectors.
    """
    given = len(vectors[0]["label"])
    products = np.zeros((given, given))
    for batch in vectors.iter(batch_size=10_000):
        products += batch["label"].T @ batch["label"]
    return np.linalg.eigh(products)[1][:, ::-1][:, :width].astype(np.float32)


@torch.no_grad()
def take_over_tokens(embedding: nn.Embedding, teacher: SentenceTransformer) -> None:
    """Initialise token embeddings from the teacher's vectors of single tokens, projected onto their
    principal axes.

    The means of such vectors are good embeddings of texts (Tulkens & van Dongen 2024, Model2Vec,
    https://github.com/MinishLab/model2vec), so the training need not learn the meanings of words
    again. The vectors are scaled to the size of the random numbers that they replace. If they were
    ten times as large, the model would learn no better than from random numbers.

    Args:
        embedding: The embeddings of a new model with the teacher's tokenizer, `(tokens, width)`.
            Dimensions beyond the width of the teacher's vectors keep their random numbers.
        teacher: The model that computes the vectors.
    """
    tokenizer = teacher.eval().tokenizer
    # An example text shows the special tokens before and after a text.
    word = tokenizer("a", return_special_tokens_mask=True)
    inside = [at for at, is_special in enumerate(word["special_tokens_mask"]) if not is_special]
    if not inside:
        raise InputError(
            "--teacher: its tokenizer finds no token in the text 'a'; pass --vocab_size for a new "
            "tokenizer"
        )
    before = word["input_ids"][: inside[0]]
    behind = word["input_ids"][inside[-1] + 1 :]
    # The shape is (tokens, 1 + special tokens).
    single = torch.tensor([[*before, token, *behind] for token in range(embedding.num_embeddings)])
    vectors = torch.cat(
        [
            teacher({"input_ids": part, "attention_mask": torch.ones_like(part)})[
                "sentence_embedding"
            ]
            for part in single.to(teacher.device).split(BATCH_SIZE)
        ]
    )
    # The shape is (tokens, width of the teacher).
    vectors = vectors.double()
    vectors = nn.functional.normalize(vectors, dim=-1)
    vectors = vectors - vectors.mean(dim=0)
    # `eigh` returns the axis with the largest eigenvalue last.
    axes = torch.linalg.eigh(vectors.T @ vectors)[1].flip(1)
    vectors = (vectors @ axes)[:, : embedding.embedding_dim]
    scaled = vectors * (embedding.weight.std() / vectors.std())
    embedding.weight[:, : vectors.shape[1]] = scaled.to(embedding.weight)


def with_vectors(texts: Dataset, teacher: SentenceTransformer) -> Dataset:
    """Add the teacher's vectors as the column `label`."""

    def vectors_of(batch: dict[str, list]) -> dict[str, np.ndarray]:
        vectors = teacher.encode(batch["text"], normalize_embeddings=True, show_progress_bar=False)
        return {"label": vectors}

    return texts.map(vectors_of, batched=True, desc="Vectors of the teacher")


def projected(texts: Dataset, axes: np.ndarray) -> Dataset:
    """Project the vectors in the column `label` onto axes `(given, width)`."""

    def project(batch: dict[str, list]) -> dict[str, np.ndarray]:
        return {"label": np.asarray(batch["label"], dtype=np.float32) @ axes}

    return texts.map(project, batched=True, desc="Principal axes")
