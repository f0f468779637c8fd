"""The tasks mlm and causal: masked and causal language modelling, on documents split into blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedModel,
)

from ..data.blocks import BlockCollator, blocks, document_tokens, packed
from ..data.data_files import Row, file_format, read_lines, text_of
from ..errors import InputError
from ..evaluate.metrics import Metrics, bits_per_byte, perplexity_metrics, token_scores
from .answers import Answer, Input, Outcome, SavedModel, generation_limits, text_answer
from .base import Task, quoted
from .task_arguments import LanguageModelDataArguments, MaskedLMDataArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict, IterableDataset
    from transformers import EvalPrediction

    from ..evaluate.baselines import Baselines

_SHUFFLED = 10_000  # blocks of a stream
_SAMPLING = {"temperature": 0.8, "top_p": 0.95, "top_k": 0}  # no limit on the number of tokens to draw from


class LanguageModelTask(Task):
    """What masked and causal language modelling have in common: documents, split into blocks."""

    is_causal: bool
    metric_names = ("perplexity", "accuracy")
    rows_are_independent = False  # they are the lines of documents

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) != ".txt":
                yield from super().read_rows([path])
                continue
            for row in read_lines(path):
                if self.args.line_by_line:
                    yield {**row, "document": row["origin"]}
                else:
                    yield {**row, "text": row["text"] + "\n", "document": str(path)}

    def select_columns(self, row: Row) -> Row:
        text = text_of(row, self.args.text_column, "text_column")
        return {"text": text, "document": row["origin"], "origin": row["origin"]}

    def is_empty(self, row: Row) -> bool:
        return not row["text"].strip() and row["document"] == row["origin"]  # a blank line within a document is text

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (row["text"] for row in rows)

    @property
    def max_length(self) -> int:
        return self.args.longest_block

    def prediction_settings(self) -> dict[str, Any]:
        return {**super().prediction_settings(), "block_size": self.args.longest_block}

    def encode(self, rows: Dataset | IterableDataset, training: bool) -> Dataset | IterableDataset:
        """The blocks of the rows, packed for training if that is asked for. Prepared data are blocks already."""
        from datasets import Dataset, IterableDataset
        from datasets.fingerprint import generate_fingerprint

        options = {"tokenizer": self.tokenizer, "block_size": self.args.longest_block, "is_causal": self.is_causal}
        if isinstance(rows, IterableDataset):
            encoded = IterableDataset.from_generator(blocks, gen_kwargs={"rows": rows, **options})
            encoded = encoded.shuffle(seed=0, buffer_size=_SHUFFLED)
        elif "input_ids" in rows.column_names:
            encoded = rows
        else:
            special = set(self.tokenizer.all_special_ids)
            if all(
                special.issuperset(block["input_ids"]) for block in blocks(rows, **options)
            ):  # reads to the first word
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

    def metrics(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        return perplexity_metrics(prediction.predictions)

    def outcomes(self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset) -> list[Outcome]:
        """A block of text with its loss, which is the mistake; the row that it comes from is not known any more."""
        found = []
        measured = zip(encoded["input_ids"], prediction.predictions, prediction.label_ids, strict=False)
        for number, (ids, (loss, tokens, right), labels) in enumerate(measured, 1):
            text = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
            mean = float(loss) / max(int(tokens), 1)
            metrics = {"tokens": int(tokens), "loss": round(mean, 4), "right": int(right)}
            columns = {"text": text, **self.measured_tokens(labels), **metrics}
            found.append(Outcome(f"block {number}", columns, mean))
        return found

    def measured_tokens(self, labels: np.ndarray) -> dict[str, str]:
        """Which tokens of a block were to be predicted, unless all were, as a column of a table."""
        return {}


class MaskedLMTask(LanguageModelTask):
    """Filling in masked tokens."""

    architecture = "ForMaskedLM"
    auto_model = AutoModelForMaskedLM
    pipeline_tag = "fill-mask"
    arguments = MaskedLMDataArguments
    is_causal = False

    def collator(self, model: PreTrainedModel) -> BlockCollator:
        return BlockCollator(self.tokenizer, mlm_probability=self.args.mlm_probability)

    main_metric = "perplexity"

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import neighbour_baselines

        ids = {split: encoded[split]["input_ids"] for split in encoded}
        return neighbour_baselines(ids.pop("train"), ids)

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return token_scores(logits, labels)

    def measured_tokens(self, labels: np.ndarray) -> dict[str, str]:
        masked = self.tokenizer.batch_decode([[token] for token in labels[labels != -100].tolist()])
        return {"masked": " ".join(text.strip() for text in masked)}

    def neutral_example(self) -> Row:
        return {"text": "The weather is fine today."}

    def example_line(self, row: Row) -> str:
        first, _, rest = row["text"].strip().partition(" ")
        return f"{first} [MASK] {rest.partition(' ')[2]}".strip()

    def snippet(self, model_id: str, row: Row) -> str:
        return self.loading_code(model_id) + (
            f"inputs = tokenizer({quoted(self.example_line(row))}, return_tensors='pt')\n"
            "logits = model(**inputs).logits[inputs['input_ids'] == tokenizer.mask_token_id]\n"
            "print(tokenizer.convert_ids_to_tokens(logits.topk(5).indices[0].tolist()))"
        )

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        return [
            f"All metrics are those of the masked tokens, {self.args.mlm_probability:.0%} of all: the loss in nats by "
            "token, perplexity its exponential. Models with another vocabulary or masking, and causal models, have "
            "metrics that cannot be compared with these."
        ]

    @classmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        encoded = saved.tokenizer(inputs, padding=True, return_tensors="pt", verbose=False).to(saved.model.device)
        logits = saved.model(**encoded).logits  # (B, L, vocab)
        logits[..., saved.tokenizer.all_special_ids] = -torch.inf  # what a mask hides is text
        masked = encoded["input_ids"] == saved.tokenizer.mask_token_id
        filled = torch.where(masked, logits.argmax(-1), encoded["input_ids"])
        return [text_answer(text) for text in saved.tokenizer.batch_decode(filled, skip_special_tokens=True)]


class CausalLMTask(LanguageModelTask):
    """Continuing text."""

    architecture = ("ForCausalLM", "LMHeadModel")
    auto_model = AutoModelForCausalLM
    pipeline_tag = "text-generation"
    arguments = LanguageModelDataArguments
    metric_names = ("perplexity", "accuracy", "bits_per_byte")
    is_causal = True
    prediction_options = (
        *("max_new_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed", "greedy", "beams"),
    )

    main_metric = "bits_per_byte"

    def config_fields(self) -> dict[str, Any]:
        return {"is_decoder": True}

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return token_scores(logits[:, :-1], labels[:, 1:])  # the logits at a token are about the next one

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import byte_baselines

        texts = {split: self.texts(rows[split]) for split in rows}
        return byte_baselines(texts.pop("train"), texts)

    def metrics(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        metrics = super().metrics(prediction, rows)
        documents, size, last = 0, 0, None
        for batch in rows.iter(batch_size=1000):
            names = batch["document"]
            documents += sum(name != before for before, name in pairwise([last, *names]))
            last = names[-1]
            size += sum(len(text.encode()) for text in batch["text"])
        # Of a block the first token is not predicted: in the first block of a document [CLS], in others text.
        scores = prediction.predictions
        tokens = int(scores[:, 1].sum(dtype=np.float64)) + len(scores) - documents
        return {**metrics, "bits_per_byte": bits_per_byte(metrics["loss"], tokens, size)}

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        return [
            "The loss is in nats by token of this model's vocabulary, and perplexity its exponential; bits_per_byte, "
            "the loss of the text in bits over its UTF-8 bytes, can be compared with models of other vocabularies."
        ]

    def neutral_example(self) -> Row:
        return {"text": "Once upon a time"}

    def example_line(self, row: Row) -> str:
        return " ".join(row["text"].split()[:5])

    def snippet(self, model_id: str, row: Row) -> str:
        token = "tokenizer.cls_token" if self.has_own_class else "(tokenizer.cls_token or tokenizer.bos_token)"
        return self.loading_code(model_id) + (
            f"prompt = {token} + {quoted(self.example_line(row))}\n"
            "inputs = tokenizer(prompt, add_special_tokens=False, return_tensors='pt')\n"
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0], skip_special_tokens=True))"
        )

    @classmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """Text that continues each input: drawn at random unless `greedy` or `beams` is given."""
        ids, start = cls.continue_texts(saved, inputs, options)
        return [text_answer(text) for text in saved.tokenizer.batch_decode(ids[:, start:], skip_special_tokens=True)]

    @classmethod
    def continue_texts(
        cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]
    ) -> tuple[torch.Tensor, int]:
        """Tokens `(B, L)` of each input, padded on the left, and of what was generated; where the latter begins."""
        first, _ = document_tokens(saved.tokenizer)
        prompts = [first + text for text in inputs]  # no [SEP], which would end the text
        encoded = saved.tokenizer(
            prompts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt", verbose=False
        ).to(saved.model.device)
        arguments = {"max_new_tokens": 50, **generation_limits(options), **_choice_of_tokens(saved, options)}
        return saved.model.generate(**encoded, **arguments), encoded["input_ids"].shape[1]


def _choice_of_tokens(saved: SavedModel, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate` that say how the next token is chosen. What was saved with the model stands before our
    own defaults."""
    chosen = {name: options[name] for name in ("repetition_penalty",) if name in options}
    if options.get("greedy"):
        return {**chosen, "do_sample": False, "num_beams": 1}
    if "beams" in options:
        return {**chosen, "do_sample": False}
    for name, default in _SAMPLING.items():
        given = options.get(name, getattr(saved.model.generation_config, name, None))
        chosen[name] = default if given is None else given
    return {**chosen, "do_sample": True, "num_beams": 1}
