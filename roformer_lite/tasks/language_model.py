"""The tasks mlm and causal: masked and causal language modelling, on documents split into
blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from ..data.blocks import BlockCollator, blocks, packed
from ..data.data_files import Row, file_format, read_running_text, text_of
from ..errors import InputError
from ..evaluate.metrics import Metrics, bits_per_byte, perplexity_metrics, token_scores
from ..evaluate.report import Outcome
from .base import Task, TaskData, TaskMetrics, TaskModel
from .task_arguments import LanguageModelDataArguments, MaskedLMDataArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset
    from transformers import EvalPrediction

    from ..evaluate.baselines import Baselines

_SHUFFLED = 10_000  # blocks of a stream
_SAMPLE = 20_000  # blocks that baselines learn from


class LanguageModelData(TaskData):
    """Rows of `text`, each the line of a `document`."""

    args: LanguageModelDataArguments
    is_causal: ClassVar[bool]
    rows_are_independent = False  # they are the lines of documents

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) != ".txt":
                yield from super().read_rows([path])
                continue
            for row in read_running_text(path):
                if self.args.line_by_line:
                    yield {**row, "text": row["text"].rstrip("\n"), "document": row["origin"]}
                else:
                    yield {**row, "document": str(path)}

    def select_columns(self, row: Row) -> Row:
        text = text_of(row, self.args.text_column, "text_column")
        return {"text": text, "document": row["origin"], "origin": row["origin"]}

    def is_empty(self, row: Row) -> bool:
        # a blank line within a document is text
        return not row["text"].strip() and row["document"] == row["origin"]

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (row["text"] for row in rows)

    @property
    def max_length(self) -> int:
        return self.args.longest_block

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "block_size": self.args.longest_block}

    def encode(self, rows: Dataset | IterableDataset, training: bool) -> Dataset | IterableDataset:
        """The blocks of the rows, packed for training if that is asked for."""
        from datasets import Dataset, IterableDataset
        from datasets.fingerprint import generate_fingerprint

        options = {
            "tokenizer": self.tokenizer,
            "block_size": self.args.longest_block,
            "is_causal": self.is_causal,
        }
        if isinstance(rows, IterableDataset):
            encoded = IterableDataset.from_generator(blocks, gen_kwargs={"rows": rows, **options})
            encoded = encoded.shuffle(seed=0, buffer_size=_SHUFFLED)
        else:
            special = set(self.tokenizer.all_special_ids)
            # to the first word
            if all(special.issuperset(block["input_ids"]) for block in blocks(rows, **options)):
                raise InputError(
                    f"{rows[0]['origin']}: from here on the tokenizer finds no word, so nothing can be predicted"
                )
            encoded = Dataset.from_generator(
                blocks,
                gen_kwargs={"rows": rows, **options},
                cache_dir=str(Path(rows.cache_files[0]["filename"]).parent),
                fingerprint=generate_fingerprint(rows),  # of its own it would hash the tokenizer
            )
        return packed(encoded, self.args.packing) if training and self.args.packing else encoded

    def collator(self, model: PreTrainedModel) -> BlockCollator:
        return BlockCollator(self.tokenizer, mlm=False)


class LanguageModelMetrics(TaskMetrics):
    """Perplexity, and how often the likeliest token is the right one."""

    def compute(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        return perplexity_metrics(prediction.predictions)

    def outcomes(
        self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset
    ) -> list[Outcome]:
        """A block of text with its loss, which is the mistake; the row that it comes from is not
        known any more."""
        found = []
        measured = zip(
            encoded["input_ids"], prediction.predictions, prediction.label_ids, strict=False
        )
        for number, (ids, (loss, tokens, right), labels) in enumerate(measured, 1):
            text = self.data.tokenizer.decode(ids, skip_special_tokens=True).strip()
            mean = float(loss) / max(int(tokens), 1)
            metrics = {"tokens": int(tokens), "loss": round(mean, 4), "right": int(right)}
            columns = {"text": text, **self.measured_tokens(labels), **metrics}
            found.append(Outcome(f"block {number}", columns, mean))
        return found

    def sample(self, rows: DatasetDict, encoded: DatasetDict) -> tuple[DatasetDict, DatasetDict]:
        """The same data, and of a stream the part that baselines learn from."""
        from datasets import Dataset, DatasetDict

        if isinstance(rows["train"], Dataset):
            return rows, encoded
        blocks = [row["input_ids"] for row in encoded["train"].take(_SAMPLE)]
        texts = self.data.tokenizer.batch_decode(blocks, skip_special_tokens=True)
        train = Dataset.from_dict({"input_ids": blocks, "text": texts})
        return DatasetDict({**rows, "train": train}), DatasetDict({**encoded, "train": train})

    def measured_tokens(self, labels: np.ndarray) -> dict[str, str]:
        """Which tokens of a block were to be predicted, unless all were, as a column of a table."""
        return {}


# mlm


class MaskedLMData(LanguageModelData):
    """The same, with some of the tokens masked."""

    args: MaskedLMDataArguments
    is_causal = False

    def collator(self, model: PreTrainedModel) -> BlockCollator:
        return BlockCollator(self.tokenizer, mlm_probability=self.args.mlm_probability)


class MaskedLMModel(TaskModel):
    """An encoder that predicts the masked tokens."""

    architecture = "ForMaskedLM"
    auto_model = AutoModelForMaskedLM


class MaskedLMMetrics(LanguageModelMetrics):
    """The same, of the masked tokens."""

    names = ("perplexity", "accuracy")
    main = "perplexity"

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return token_scores(logits, labels)

    def measured_tokens(self, labels: np.ndarray) -> dict[str, str]:
        masked = self.data.tokenizer.batch_decode(
            [[token] for token in labels[labels != -100].tolist()]
        )
        return {"masked": " ".join(text.strip() for text in masked)}

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import neighbour_baselines

        _, encoded = self.sample(rows, encoded)
        ids = {split: encoded[split]["input_ids"] for split in encoded}
        return neighbour_baselines(ids.pop("train"), ids)

    def notes(self, model: PreTrainedModel) -> list[str]:
        return [
            f"All metrics are those of the masked tokens, {self.data.args.mlm_probability:.0%} of all: the loss in "
            "nats by token, perplexity its exponential. Models with another vocabulary or masking, and causal models, "
            "have metrics that cannot be compared with these."
        ]


class MaskedLMTask(Task):
    """Filling in masked tokens."""

    arguments = MaskedLMDataArguments
    pipeline_tag = "fill-mask"
    data_class, model_class, metrics_class = MaskedLMData, MaskedLMModel, MaskedLMMetrics


# causal


class CausalLMData(LanguageModelData):
    """The same, for a decoder."""

    is_causal = True


class CausalLMModel(TaskModel):
    """A decoder that predicts the next token."""

    architecture = ("ForCausalLM", "LMHeadModel")
    auto_model = AutoModelForCausalLM

    def config_fields(self) -> dict[str, Any]:
        return {"is_decoder": True}


class CausalLMMetrics(LanguageModelMetrics):
    """The same, of every token, and bits per byte."""

    names = ("perplexity", "accuracy", "bits_per_byte")
    main = "bits_per_byte"

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        # the logits at a token are about the next one
        return token_scores(logits[:, :-1], labels[:, 1:])

    def compute(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        metrics = super().compute(prediction, rows)
        documents, size, last = 0, 0, None
        for batch in rows.iter(batch_size=1000):
            names = batch["document"]
            documents += sum(name != before for before, name in pairwise([last, *names]))
            last = names[-1]
            size += sum(len(text.encode()) for text in batch["text"])
        # Of a block the first token is not predicted: in the first block of a document [CLS], in
        # others text.
        scores = prediction.predictions
        tokens = int(scores[:, 1].sum(dtype=np.float64)) + len(scores) - documents
        return {**metrics, "bits_per_byte": bits_per_byte(metrics["loss"], tokens, size)}

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import byte_baselines

        rows, _ = self.sample(rows, encoded)
        texts = {split: self.data.texts(rows[split]) for split in rows}
        return byte_baselines(texts.pop("train"), texts)

    def notes(self, model: PreTrainedModel) -> list[str]:
        return [
            "The loss is in nats by token of this model's vocabulary, and perplexity its exponential; bits_per_byte, "
            "the loss of the text in bits over its UTF-8 bytes, can be compared with models of other vocabularies."
        ]


class CausalLMTask(Task):
    """Continuing text."""

    arguments = LanguageModelDataArguments
    pipeline_tag = "text-generation"
    data_class, model_class, metrics_class = CausalLMData, CausalLMModel, CausalLMMetrics
