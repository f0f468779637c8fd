"""The task embed: a text gets a vector, near those of texts with a similar meaning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import AutoModel, PreTrainedModel

from ..data.sentence_data import queries_and_documents
from ..errors import InputError
from ..output import RESULTS_FILE
from .sentence import (
    CORRELATIONS,
    RETRIEVAL,
    SentenceData,
    SentenceMetrics,
    SentenceModel,
    SentenceTask,
)
from .task_arguments import EmbedDataArguments

if TYPE_CHECKING:
    import torch
    from datasets import Dataset, DatasetDict
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers.configuration_utils import PreTrainedConfig

    from ..evaluate.baselines import ScoredPairs
    from ..train.run import Run

# the library's names, our classifier_pooling
_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}


class EmbedData(SentenceData):
    """Pairs, triplets or scored pairs; or texts, whose vectors a teacher gives."""

    args: EmbedDataArguments
    kinds = (*SentenceData.kinds, "texts")

    def inspect(self, rows: DatasetDict) -> None:
        super().inspect(rows)
        if self.kind != "texts" and self.args.teacher is not None:
            raise InputError(
                f"--teacher {self.args.teacher} is for training data with the column text, not with "
                f"{', '.join(rows['train'].column_names[:-1])}"
            )
        if "texts" in (self.kind, self.measured_kind):
            self._require_teacher()

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        widths = settings.get("matryoshka", [])
        if not isinstance(widths, list) or not all(
            type(width) is int and width > 0 for width in widths
        ):
            raise InputError(
                f"{RESULTS_FILE}: settings.matryoshka must be a list of whole numbers, not {widths!r}"
            )
        self.args.matryoshka = widths

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "matryoshka": self.args.matryoshka}

    def _require_teacher(self) -> None:
        if self.args.teacher is None:
            raise InputError(
                "texts alone, in the column text, say nothing about similarity; train takes --teacher, a model whose "
                "vectors are learned, and both train and evaluate data with columns such as anchor and positive"
            )

    @cached_property
    def teacher(self) -> SentenceTransformer:
        """The model whose vectors are learned."""
        self._require_teacher()
        from ..teacher import open_teacher

        return open_teacher(self.args.teacher)

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """With a teacher, its vectors `(rows, width)` of length 1 are the column `label`."""
        encoded = super().encode(rows, training)
        if "text" not in encoded.column_names:
            return encoded

        def label(batch: dict[str, list]) -> dict[str, Any]:
            return {
                "label": self.teacher.encode(
                    batch["text"], normalize_embeddings=True, show_progress_bar=False
                )
            }

        return encoded.map(label, batched=True, desc="Vectors of the teacher")

    def scored_pairs(self, encoded: Dataset) -> ScoredPairs:
        """Of texts with a teacher: each and the next one, with the cosine that the teacher gives
        them."""
        if "label" not in encoded.column_names:
            return super().scored_pairs(encoded)
        texts, vectors = encoded["text"][:], np.asarray(encoded["label"][:], dtype=np.float32)
        return (
            texts,
            texts[1:] + texts[:1],
            (vectors * np.roll(vectors, -1, axis=0)).sum(1).tolist(),
        )


class EmbedModel(SentenceModel):
    """An encoder whose vector of a text is the mean of its tokens' states."""

    architecture = "Model"
    auto_model = AutoModel
    class_name = "SentenceTransformer"
    data: EmbedData

    def config_fields(self) -> dict[str, Any]:
        return {"add_pooling_layer": False}

    def wrap(self, model: PreTrainedModel, run: Run) -> SentenceTransformer:
        wrapped = super().wrap(model, run)
        for module in wrapped:
            pooling = _POOLINGS.get(getattr(module, "pooling_mode", None))
            if pooling is not None and self.has_own_class:
                model.config.classifier_pooling = pooling  # by which `serve` and `export` pool
        from ..train.tokenizers import begins_with_teachers_tokens

        if begins_with_teachers_tokens(run):
            from ..teacher import take_over_tokens

            take_over_tokens(model.get_input_embeddings(), self.data.teacher)
        return wrapped

    @property
    def widths(self) -> list[int]:
        """The Matryoshka dimensions: how many of the first numbers of a vector serve alone."""
        width = self.sentence_model.get_embedding_dimension()
        too_wide = [part for part in self.data.args.matryoshka if part > width]
        if too_wide:
            raise InputError(
                f"--matryoshka {too_wide[0]}: the model's vectors have {width} numbers"
            )
        return sorted({*self.data.args.matryoshka} - {width}, reverse=True)

    def prepare_targets(self, encoded: DatasetDict) -> None:
        """Rotate the teacher's vectors to their principal axes where the model is narrower or
        serves in parts, and leave out the last axes; cosines stay as they were but for what these
        held."""
        args = self.data.args
        if self.data.kind != "texts":
            return
        given, width = (
            len(encoded["train"][0]["label"]),
            self.sentence_model.get_embedding_dimension(),
        )
        if width > given:
            raise InputError(
                f"the model's vectors have {width} numbers, those of --teacher {args.teacher} only {given}; give "
                "a smaller --size, or a wider teacher"
            )
        axes = None
        if width < given or args.matryoshka:
            from ..teacher import principal_axes

            axes = principal_axes(encoded["train"].with_format("numpy", dtype=np.float32), width)
        for split, dataset in encoded.items():
            if "label" not in dataset.column_names:
                continue
            if axes is not None:
                dataset = dataset.map(
                    lambda batch: {"label": np.asarray(batch["label"], dtype=np.float32) @ axes},
                    batched=True,
                    desc="Principal axes",
                )
            encoded[split] = dataset.with_format(
                "torch", columns=["label"], output_all_columns=True
            )
        del self.data.teacher  # its memory is needed no longer

    @property
    def compares_rows(self) -> bool:
        return self.data.kind in ("pairs", "scores")

    def loss(self, model: SentenceTransformer) -> torch.nn.Module:
        from sentence_transformers.sentence_transformer import losses

        kinds = {"scores": losses.CoSENTLoss, "texts": losses.EmbedDistillLoss}
        loss = kinds.get(self.data.kind, losses.MultipleNegativesRankingLoss)(model)
        if not self.widths:
            return loss
        return losses.MatryoshkaLoss(model, loss, [model.get_embedding_dimension(), *self.widths])


class EmbedMetrics(SentenceMetrics):
    """Correlations of cosines with scores, or retrieval, of whole vectors and of their Matryoshka
    dimensions."""

    data: EmbedData
    model: EmbedModel

    @property
    def names(self) -> Sequence[str]:
        suffixes = ["", *(f"_{width}" for width in self.data.args.matryoshka)]
        return [
            name + suffix
            for suffix in suffixes
            for name in (CORRELATIONS if self.are_correlations else RETRIEVAL)
        ]

    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        from sentence_transformers.sentence_transformer import evaluation

        from ..train.sentence_trainers import NamedMetrics, search

        if self.are_correlations:
            kind, names, options = (
                evaluation.EmbeddingSimilarityEvaluator,
                CORRELATIONS,
                {"main_similarity": "cosine"},
            )
            options |= dict(
                zip(
                    ("sentences1", "sentences2", "scores"),
                    self.data.scored_pairs(encoded),
                    strict=True,
                )
            )
            options["write_csv"] = False
        else:
            kind, names = evaluation.InformationRetrievalEvaluator, RETRIEVAL
            options = {"main_score_function": "cosine", **search(*queries_and_documents(encoded))}
        widths = {"": None, **{f"_{width}": width for width in self.model.widths}}
        options["batch_size"] = batch_size
        return NamedMetrics(
            {suffix: kind(truncate_dim=width, **options) for suffix, width in widths.items()}, names
        )

    def measurements(self, rows: Dataset) -> int:
        return len(rows) if self.are_correlations else len(queries_and_documents(rows)[0])

    def notes(self, model: PreTrainedModel) -> list[str]:
        notes = super().notes(model)
        if self.data.measured_kind == "texts":
            notes = [
                "Pearson and Spearman are correlations, from -1 to 1, of the cosines of pairs of texts with those of "
                "the teacher's vectors."
            ]
        if self.model.widths:
            parts = ", ".join(map(str, self.model.widths))
            notes.append(
                f"Metrics that end in a number are those of the first so many numbers of a vector: {parts}."
            )
        return notes


class EmbedTask(SentenceTask):
    """Vectors of texts."""

    arguments = EmbedDataArguments
    pipeline_tag = "sentence-similarity"
    data_class, model_class, metrics_class = EmbedData, EmbedModel, EmbedMetrics
