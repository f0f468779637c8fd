"""The task seq2seq: text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, PreTrainedModel

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteSeq2SeqConfig

from ..data.data_files import Row, file_format, read_parallel, text_of
from ..errors import InputError
from ..evaluate.metrics import Metrics, sentence_chrf, translation_metrics
from ..evaluate.report import Outcome
from .base import Task, TaskData, TaskMetrics, TaskModel
from .task_arguments import Seq2SeqDataArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, GenerationConfig, Trainer, TrainingArguments

    from ..evaluate.baselines import Baselines


class Seq2SeqData(TaskData):
    """Rows of a `source` and a `target`."""

    args: Seq2SeqDataArguments

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        plain = [path for path in files if file_format(path) == ".txt" or _is_parallel_part(path)]
        if not plain:
            yield from super().read_rows(files)
            return
        if len(plain) != len(files) or len(files) % 2:
            raise InputError(
                f"{' '.join(files)}: plain text comes in pairs, a file of source lines and a file of target lines"
            )
        for source, target in zip(files[::2], files[1::2], strict=True):
            for row in read_parallel(source, target):
                yield {**row, "source": row["source"].strip(), "target": row["target"].strip()}

    def select_columns(self, row: Row) -> Row:
        source = text_of(row, self.args.source_column, "source_column")
        target = text_of(row, self.args.target_column, "target_column")
        return {"source": source, "target": target, "origin": row["origin"]}

    def is_empty(self, row: Row) -> bool:
        return not row["source"] or not row["target"]

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (row[side] for row in rows for side in ("source", "target"))

    @property
    def max_length(self) -> int:
        return self.args.max_source_length

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        def tokenize(batch: dict[str, list[str]]) -> dict[str, list]:
            inputs = self.tokenizer(
                batch["source"], truncation=True, max_length=self.args.max_source_length
            )
            targets = self.tokenizer(
                text_target=batch["target"], truncation=True, max_length=self.args.max_target_length
            )
            return {**inputs, "labels": targets["input_ids"]}

        return rows.map(tokenize, batched=True, remove_columns=rows.column_names, desc="Encoding")

    def lengths(self, encoded: Dataset) -> list[int]:
        pairs = zip(encoded["input_ids"], encoded["labels"], strict=True)
        return [len(source) + len(target) for source, target in pairs]

    def collator(self, model: PreTrainedModel) -> DataCollatorForSeq2Seq:
        return DataCollatorForSeq2Seq(self.tokenizer, model=model)  # which makes decoder_input_ids

    def decode(self, token_ids: np.ndarray) -> list[str]:
        """Text of generated `(rows, length)` ids, padded with -100 or the padding token."""
        token_ids = np.where(token_ids < 0, self.tokenizer.pad_token_id, token_ids)
        return [
            text.strip()
            for text in self.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
        ]


class Seq2SeqModel(TaskModel):
    """An encoder–decoder."""

    architecture = "ForConditionalGeneration"
    auto_model = AutoModelForSeq2SeqLM
    config_class = RoFormerLiteSeq2SeqConfig

    @classmethod
    def training_classes(cls) -> tuple[type[TrainingArguments], type[Trainer]]:
        from transformers import Seq2SeqTrainingArguments

        from ..train.trainer import RoFormerLiteSeq2SeqTrainer

        return Seq2SeqTrainingArguments, RoFormerLiteSeq2SeqTrainer

    def prepare_generation(
        self, model: PreTrainedModel, args: TrainingArguments
    ) -> GenerationConfig | None:
        # the start token counts
        longest = args.generation_max_length or self.data.args.max_target_length + 1
        model.generation_config.max_length = longest
        model.generation_config.num_beams = args.generation_num_beams or 1
        return super().prepare_generation(model, args)


class Seq2SeqMetrics(TaskMetrics):
    """BLEU and chrF of sacrebleu, and exact match."""

    data: Seq2SeqData
    names = ("bleu", "chrf", "exact_match")
    main = "chrf"

    def in_training(self, args: TrainingArguments) -> list[str]:
        return super().in_training(args) if args.predict_with_generate else ["loss"]

    def check(self, args: TrainingArguments, best: str | None = None) -> None:
        super().check(args, best)
        tokenizer = self.data.args.bleu_tokenizer
        try:
            translation_metrics(["a"], ["a"], tokenizer)
        # some of sacrebleu's tokenizers need a package or a download; each says so its way
        except Exception as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"--bleu_tokenizer {tokenizer} cannot be used here: {reason}"
            ) from error

    def compute(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        hypotheses = self.data.decode(prediction.predictions[: len(rows)])
        return translation_metrics(hypotheses, rows["target"], self.data.args.bleu_tokenizer)

    def outcomes(
        self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset
    ) -> list[Outcome]:
        found = []
        for row, text in zip(
            rows, self.data.decode(prediction.predictions[: len(rows)]), strict=True
        ):
            chrf = sentence_chrf(text, row["target"])
            columns = {
                "source": row["source"],
                "target": row["target"],
                "prediction": text,
                "chrf": round(chrf, 2),
            }
            found.append(
                Outcome(row["origin"], columns, 0.0 if text == row["target"] else 101 - chrf)
            )
        return found

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import text_to_text_baselines

        pairs = {
            split: (list(rows[split]["source"]), list(rows[split]["target"])) for split in rows
        }
        return text_to_text_baselines(self.data.args.bleu_tokenizer, pairs.pop("train"), pairs)

    def notes(self, model: PreTrainedModel) -> list[str]:
        beams = model.generation_config.num_beams
        return [
            f"BLEU (tokenizer {self.data.args.bleu_tokenizer}) and chrF are sacrebleu {version('sacrebleu')}'s on the "
            f"untouched reference text; beam search with {beams} beam{'' if beams == 1 else 's'}. "
            "Both run from 0 to 100, exact_match from 0 to 1; the loss is the cross-entropy in nats by token "
            "of a batch, averaged over the rows."
        ]


class Seq2SeqTask(Task):
    """Text in, text out."""

    arguments = Seq2SeqDataArguments
    pipeline_tag = "translation"
    data_class, model_class, metrics_class = Seq2SeqData, Seq2SeqModel, Seq2SeqMetrics


def _is_parallel_part(path: str) -> bool:
    """Whether a file is named like one side of a parallel corpus, `train.en` or `train.en.gz`: by a
    language code."""
    suffix = file_format(path)
    return 3 <= len(suffix) <= 4 and suffix[1:].isalpha() and suffix not in (".tsv", ".csv")
