"""The tasks mlm and causal: masked and causal language modelling, on documents cut into blocks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...errors import InputError
from ...model.tokenization_roformer_lite import RoFormerLiteTokenizer
from ..arguments import DataArguments
from ..data_files import Row, file_format, read_lines, text_of
from ..metrics import Metrics, perplexity_metrics, token_scores
from .base import Task, quoted


@dataclass
class LanguageModelDataArguments(DataArguments):
    """Text of language models. A .txt file is one document, or with --line_by_line each of its lines is; other files
    have a document a row."""

    text_column: str = field(default="text", metadata={"help": "Column of the text in tables and datasets."})
    block_size: int = field(default=256, metadata={"help": "Longest piece of a document in tokens."})
    line_by_line: bool = field(default=False, metadata={"help": "Every line of a .txt file is a document."})


@dataclass
class MaskedLMDataArguments(LanguageModelDataArguments):
    """The same, with the masking."""

    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens to be predicted."})


class LanguageModelTask(Task):
    """What masked and causal language modelling have in common: documents, cut into blocks."""

    is_causal: bool
    rows_are_independent = False  # they are the lines of documents

    def rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) != ".txt":
                yield from super().rows([path])
                continue
            for row in read_lines(path):
                if self.args.line_by_line:
                    yield {**row, "document": row["origin"]}
                else:
                    yield {**row, "text": row["text"] + "\n", "document": str(path)}

    def raw_row(self, row: Row) -> Row:
        return {"text": text_of(row, self.args.text_column), "document": row["origin"], "origin": row["origin"]}

    def is_empty(self, row: Row) -> bool:
        return not row["text"].strip() and row["document"] == row["origin"]  # a blank line within a document is text

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (row["text"] for row in rows)

    @property
    def max_length(self) -> int:
        return self.args.block_size

    def encode(self, raw: Dataset, tokenizer: PreTrainedTokenizerBase, training: bool) -> Dataset:
        if self.args.block_size < 8:
            raise InputError(f"--block_size {self.args.block_size} must be at least 8 tokens")
        options = {"tokenizer": tokenizer, "block_size": self.args.block_size, "is_causal": self.is_causal}
        rows = Path(raw.cache_files[0]["filename"])
        return Dataset.from_generator(
            blocks,
            gen_kwargs={"raw": raw, **options},
            cache_dir=str(rows.parent),
            fingerprint=f"{raw._fingerprint}-blocks",
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> DataCollatorForLanguageModeling:
        return DataCollatorForLanguageModeling(tokenizer, mlm=False)

    def metrics(self, prediction: EvalPrediction, raw: Dataset, tokenizer: PreTrainedTokenizerBase) -> Metrics:
        return perplexity_metrics(prediction.predictions)


def blocks(raw: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, is_causal: bool) -> Iterator[dict]:
    """Cut documents into examples of at most `block_size` tokens; no block spans two documents.

    A causal document is `[CLS] … [SEP]` as a whole, a masked one has both in every block, as its users will. The last
    two blocks share what is left evenly, so that no block is a stump.
    """
    frame = 0 if is_causal else 2
    capacity = block_size - frame
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id

    def example(ids: list[int]) -> dict[str, list[int]]:
        ids = ids if is_causal else [start, *ids, end]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def rest(ids: list[int]) -> Iterator[dict]:
        ids = [*ids, end] if is_causal and ids else ids
        pieces = -(-len(ids) // capacity)
        for piece in np.array_split(ids, pieces) if pieces else []:
            yield example(piece.tolist())

    document, buffer = None, []
    for batch in raw.iter(batch_size=1000):
        encoded = tokenizer(batch["text"], add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        for name, ids in zip(batch["document"], encoded, strict=True):
            if name != document:
                yield from rest(buffer)
                document, buffer = name, [start] if is_causal else []
            buffer.extend(ids)
            while len(buffer) >= 2 * capacity:
                yield example(buffer[:capacity])
                buffer = buffer[capacity:]
    yield from rest(buffer)


class MaskedLMTask(LanguageModelTask):
    """Filling in masked tokens."""

    name = "mlm"
    summary = "masked language model: an encoder learns a language from plain text"
    architecture = "ForMaskedLM"
    auto_model = AutoModelForMaskedLM
    pipeline_tag = "fill-mask"
    arguments = MaskedLMDataArguments
    is_causal = False

    def collator(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> DataCollatorForLanguageModeling:
        return DataCollatorForLanguageModeling(tokenizer, mlm_probability=self.args.mlm_probability)

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return token_scores(logits, labels)

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
        return [f"Perplexity and accuracy are those of the masked tokens, {self.args.mlm_probability:.0%} of all."]

    @classmethod
    def predict(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lines: list[str],
        settings: dict[str, Any],
        generation: dict[str, Any],
    ) -> list[str]:
        inputs = tokenizer(lines, padding=True, return_tensors="pt", verbose=False).to(model.device)
        logits = model(**inputs).logits  # (B, L, vocab)
        logits[..., tokenizer.all_special_ids] = -torch.inf  # a mask hides text
        masked = inputs["input_ids"] == tokenizer.mask_token_id
        filled = torch.where(masked, logits.argmax(-1), inputs["input_ids"])
        return tokenizer.batch_decode(filled, skip_special_tokens=True)


class CausalLMTask(LanguageModelTask):
    """Continuing text."""

    name = "causal"
    summary = "causal language model: a decoder learns to continue text"
    architecture = "ForCausalLM"
    auto_model = AutoModelForCausalLM
    pipeline_tag = "text-generation"
    arguments = LanguageModelDataArguments
    is_causal = True

    def config_fields(self) -> dict[str, Any]:
        return {"is_decoder": True}

    def prepare_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if isinstance(tokenizer, RoFormerLiteTokenizer):
            tokenizer.add_bos_token = True  # a prompt is [CLS] x: behind a [SEP] another text would begin

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return token_scores(logits[:, :-1], labels[:, 1:])  # the logits at a token are about the next one

    def example_line(self, row: Row) -> str:
        return " ".join(row["text"].split()[:5])

    def snippet(self, model_id: str, row: Row) -> str:
        return self.loading_code(model_id) + (
            f"prompt = tokenizer.cls_token + {quoted(self.example_line(row))}\n"
            "inputs = tokenizer(prompt, add_special_tokens=False, return_tensors='pt')\n"
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0], skip_special_tokens=True))"
        )

    @classmethod
    def predict(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        lines: list[str],
        settings: dict[str, Any],
        generation: dict[str, Any],
    ) -> list[str]:
        prompts = [tokenizer.cls_token + line for line in lines]  # no [SEP]: it would be the end
        inputs = tokenizer(
            prompts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt", verbose=False
        ).to(model.device)
        generated = model.generate(**inputs, **{"max_new_tokens": 50, **generation})
        return tokenizer.batch_decode(generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
