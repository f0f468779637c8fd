"""The task embed: a text gets a vector, near those of texts with a similar meaning."""

from __future__ import annotations

import json
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import AutoModel, PreTrainedModel

from ..data.data_files import Row
from ..data.sentence_data import queries_and_documents
from ..errors import InputError
from ..output import RESULTS_FILE
from ..train.sentence_models import naming_sentence_model
from .answers import Answer, Input, SavedModel
from .base import quoted
from .sentence import SentenceTask
from .task_arguments import EmbedDataArguments

if TYPE_CHECKING:
    import torch
    from datasets import Dataset, DatasetDict
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers import Trainer, TrainingArguments
    from transformers.configuration_utils import PreTrainedConfig

    from ..evaluate.baselines import ScoredPairs
    from ..train.run import Run

_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}  # the library's names, our classifier_pooling


class EmbedTask(SentenceTask):
    """Vectors of texts, the means of their tokens' states."""

    architecture = "Model"
    auto_model = AutoModel
    pipeline_tag = "sentence-similarity"
    arguments = EmbedDataArguments
    metric_names = ("spearman", "pearson", "mrr@10", "accuracy@1", "accuracy@10")
    kinds = (*SentenceTask.kinds, "texts")

    @classmethod
    def training_classes(cls) -> tuple[type[TrainingArguments], type[Trainer]]:
        from ..train.sentence_trainers import EmbeddingTrainer, SentenceTrainingArguments

        return SentenceTrainingArguments, EmbeddingTrainer

    @classmethod
    def model_class(cls) -> type[SentenceTransformer]:
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer

    def config_fields(self) -> dict[str, Any]:
        return {"add_pooling_layer": False}

    def inspect_training_data(self, rows: Dataset) -> None:
        super().inspect_training_data(rows)
        if self.kind != "texts" and self.args.teacher is not None:
            raise InputError(
                f"--teacher {self.args.teacher} is for training data with the column text, not with "
                f"{', '.join(rows.column_names[:-1])}"
            )

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        widths = settings.get("matryoshka", [])
        if not isinstance(widths, list) or not all(type(width) is int and width > 0 for width in widths):
            raise InputError(f"{RESULTS_FILE}: settings.matryoshka must be a list of whole numbers, not {widths!r}")
        self.args.matryoshka = widths

    # the teacher

    @property
    def tokenizer_name(self) -> str | None:
        return self.args.teacher

    @cached_property
    def teacher(self) -> SentenceTransformer:
        """The model whose vectors are learnt."""
        name = self.args.teacher
        if name is None:
            raise InputError(
                "texts alone, in the column text, say nothing about similarity; train takes --teacher, a model whose "
                "vectors are learnt, and both train and evaluate data with columns such as anchor and positive"
            )
        with naming_sentence_model(name, "--teacher "):
            return self.model_class()(name, local_files_only=os.path.isdir(name))

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """With a teacher, its vectors `(rows, width)` of length 1 are the column `label`."""
        encoded = super().encode(rows, training)
        if "text" not in encoded.column_names:
            return encoded

        def label(batch: dict[str, list]) -> dict[str, Any]:
            return {"label": self.teacher.encode(batch["text"], normalize_embeddings=True, show_progress_bar=False)}

        return encoded.map(label, batched=True, desc="Vectors of the teacher")

    def prepare_targets(self, encoded: DatasetDict) -> None:
        """Rotate the teacher's vectors to their principal axes where the model is narrower or serves in parts, and
        leave out the last axes; cosines stay as they were but for what these held."""
        if self.kind != "texts":
            return
        given, width = len(encoded["train"][0]["label"]), self.sentence_model.get_embedding_dimension()
        if width > given:
            raise InputError(
                f"the model's vectors have {width} numbers, those of --teacher {self.args.teacher} only {given}; give "
                "a smaller --size, or a wider teacher"
            )
        axes = None
        if width < given or self.args.matryoshka:
            from ..train.teacher import principal_axes

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
            encoded[split] = dataset.with_format("torch", columns=["label"], output_all_columns=True)
        del self.teacher  # its memory is needed no longer

    # training

    def trainer_parts(self, run: Run, args: TrainingArguments, model: PreTrainedModel, *data: Any) -> dict[str, Any]:
        from ..train.tokenizers import begins_with_teachers_tokens

        if begins_with_teachers_tokens(run, self):
            from ..train.teacher import take_over_tokens

            take_over_tokens(model.get_input_embeddings(), self.teacher)
        parts = super().trainer_parts(run, args, model, *data)
        for module in self.sentence_model:
            pooling = _POOLINGS.get(getattr(module, "pooling_mode", None))
            if pooling is not None and self.has_own_class:
                model.config.classifier_pooling = pooling  # by which `serve` and `export` pool
        return parts

    @property
    def widths(self) -> list[int]:
        """The numbers of a vector that serve alone."""
        width = self.sentence_model.get_embedding_dimension()
        too_wide = [part for part in self.args.matryoshka if part > width]
        if too_wide:
            raise InputError(f"--matryoshka {too_wide[0]}: the model's vectors have {width} numbers")
        return sorted({*self.args.matryoshka} - {width}, reverse=True)

    def loss(self, model: SentenceTransformer) -> torch.nn.Module:
        from sentence_transformers.sentence_transformer import losses

        kinds = {"scores": losses.CoSENTLoss, "texts": losses.EmbedDistillLoss}
        loss = kinds.get(self.kind, losses.MultipleNegativesRankingLoss)(model)
        if not self.widths:
            return loss
        return losses.MatryoshkaLoss(model, loss, [model.get_embedding_dimension(), *self.widths])

    # measuring

    def evaluator(self, encoded: Dataset, batch_size: int) -> BaseEvaluator:
        from sentence_transformers.sentence_transformer import evaluation

        from ..train.sentence_trainers import CORRELATIONS, RETRIEVAL, NamedMetrics, search

        widths = {"": None, **{f"_{width}": width for width in self.widths}}
        if self.main_metric == "spearman":
            pairs = self.scored_pairs(encoded)
            made = {
                suffix: evaluation.EmbeddingSimilarityEvaluator(
                    *pairs, batch_size, main_similarity="cosine", write_csv=False, truncate_dim=width
                )
                for suffix, width in widths.items()
            }
            return NamedMetrics(made, CORRELATIONS)
        arguments = {"batch_size": batch_size, "main_score_function": "cosine"}
        arguments |= search(*queries_and_documents(encoded))
        made = {
            suffix: evaluation.InformationRetrievalEvaluator(truncate_dim=width, **arguments)
            for suffix, width in widths.items()
        }
        return NamedMetrics(made, RETRIEVAL)

    def scored_pairs(self, encoded: Dataset) -> ScoredPairs:
        """Of texts with a teacher: each and the next one, with the cosine that the teacher gives them."""
        if "label" not in encoded.column_names:
            return super().scored_pairs(encoded)
        texts, vectors = encoded["text"][:], np.asarray(encoded["label"][:], dtype=np.float32)
        return texts, texts[1:] + texts[:1], (vectors * np.roll(vectors, -1, axis=0)).sum(1).tolist()

    # the card

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        notes = super().metric_notes(model)
        if self.measured_kind == "texts":
            notes = [
                "Pearson and Spearman are correlations, from -1 to 1, of the cosines of pairs of texts with those of "
                "the teacher's vectors."
            ]
        if self.widths:
            parts = ", ".join(map(str, self.widths))
            notes.append(f"Metrics that end in a number are those of the first so many numbers of a vector: {parts}.")
        return notes

    def prediction_settings(self) -> dict[str, Any]:
        return {**super().prediction_settings(), "matryoshka": self.args.matryoshka}

    def example_line(self, row: Row) -> str:
        return self.first_texts(row)[0]

    def snippet(self, model_id: str, row: Row) -> str:
        texts, width = self.first_texts(row), self.sentence_model.get_embedding_dimension()
        return self.loading_code(model_id) + (
            f"vectors = model.encode({quoted(texts)})  # ({len(texts)}, {width})\n"
            "print(model.similarity(vectors, vectors))"
        )

    # predicting

    @classmethod
    def answer_columns(cls, saved: SavedModel, options: dict[str, Any]) -> list[str]:
        return ["embedding"]

    @classmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """The vector as a list of JSON, with as many digits as a number of 32 bits holds."""
        vectors = saved.model.encode(inputs, batch_size=len(inputs), show_progress_bar=False)
        rows = [[float(f"{number:.8g}") for number in vector] for vector in vectors.tolist()]
        return [Answer(json.dumps(row), {"embedding": row}) for row in rows]
