"""The tasks mlm and causal: masked and causal language modelling, on documents split into
blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from hf_roformer_lite.padding_free.trial import ignores_first_label

from ..data.blocks import BlockCollator, batches, blocks, document_ids, stop_after_documents
from ..data.data_files import Row, file_format, read_lines, text_of
from ..data.duplicates import SEEN
from ..data.reader import Reader
from ..errors import InputError
from ..measuring.metrics import Metrics, perplexity_metrics, token_scores
from ..measuring.significance import Measured, RowMetric, perplexity, ratio_of
from ..options.tasks import LanguageModelDataArguments, MaskedLMDataArguments
from .base import Answer, Recipe, Start
from .loaded_model import LoadedModel, right_sided, texts_of
from .words import blank_tokens

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import EvalPrediction

MAX_NEW_TOKENS = 50


class LanguageModelReader(Reader):
    """Reads a `text`, which is a line of a `document`."""

    rows_are_independent = False

    options: LanguageModelDataArguments

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) != ".txt":
                yield from super().read_rows([path])
                continue
            for origin, text in read_lines(path):
                if self.options.line_by_line:
                    yield {"text": text, "document": origin, "origin": origin}
                else:
                    yield {"text": f"{text}\n", "document": path, "origin": origin}

    def select_columns(self, row: Row) -> Row:
        return {
            "text": text_of(row, self.options.text_column, "text_column"),
            "document": row["origin"],
            "origin": row["origin"],
        }

    def is_empty(self, row: Row) -> bool:
        # A blank line within a document is text.
        is_document = row["document"] == row["origin"]
        return is_document and not row["text"].strip()

    def keys(self, rows: Dataset) -> np.ndarray:
        """Only whole documents are compared. A line of a document equals itself alone."""
        keys = super().keys(rows)
        places = zip(rows["document"], rows["origin"], strict=True)
        for number, (document, origin) in enumerate(places):
            if document != origin:
                keys[number] = hash(origin)
        return keys


@dataclass(frozen=True)
class LanguageModel(Recipe):
    """The common base of masked and causal language models.

    The metrics are computed from the tokens of the text, not from predictions.
    """

    reader_class = LanguageModelReader
    compares_checkpoint = True
    is_causal: ClassVar[bool]

    options: LanguageModelDataArguments

    # Encoding.

    @property
    def max_length(self) -> int:
        return self.options.block_size

    def encode(self, rows: Any, tokenizer: PreTrainedTokenizerBase, training: bool) -> Any:
        """The blocks of the rows.

        Raises:
            InputError: if the text has no word.
        """
        from datasets import Dataset
        from datasets.fingerprint import generate_fingerprint

        options: dict[str, Any] = {
            "tokenizer": tokenizer,
            "block_size": self.options.block_size,
            "is_causal": self.is_causal,
        }
        special = set(tokenizer.all_special_ids)
        if all(special.issuperset(block["input_ids"]) for block in blocks(rows, **options)):
            raise InputError(
                f"{rows[0]['origin']}: the tokenizer finds no word in the text that begins here, "
                "so nothing can be predicted"
            )
        return Dataset.from_generator(
            blocks,
            gen_kwargs={"rows": rows, **options},
            cache_dir=str(Path(rows.cache_files[0]["filename"]).parent),
            # The library would hash the tokenizer for a fingerprint of its own.
            fingerprint=generate_fingerprint(rows),
        )

    # The model, and its training.

    def config_fields(self) -> dict[str, Any]:
        return {"is_decoder": self.is_causal}

    # Choosing a checkpoint.

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """The `token_scores` of each row, `(B, 3)`."""
        return token_scores(logits, labels)

    def choose(
        self, prediction: EvalPrediction, rows: Dataset, tokenizer: PreTrainedTokenizerBase
    ) -> Metrics:
        return self.measured(np.asarray(prediction.predictions), rows).metrics

    # Measuring.

    # A model may also be evaluated before it is trained, and training can't use tensors that were
    # made in inference mode.
    @torch.no_grad()
    def evaluate(self, saved: LoadedModel, rows: Dataset, batch_size: int, seed: int) -> Measured:
        encoded = self.encode(rows, saved.tokenizer, training=False)
        set_seed(seed)
        collator = self.collator(saved.model, saved.tokenizer)
        scores: list[np.ndarray] = []
        for batch in batches(saved.model, encoded, collator, batch_size):
            logits = saved.model(**batch).logits
            scores.append(self.reduce_logits(logits, batch["labels"]).cpu().numpy())
        return self.measured(np.concatenate(scores), rows)

    def are_seen(self, saved: LoadedModel, rows: Dataset) -> np.ndarray:
        found: list[bool] = []
        for _, lines in groupby(enumerate(rows["document"]), key=itemgetter(1)):
            document = rows.select([number for number, _ in lines])
            own = blocks(document, saved.tokenizer, self.options.block_size, self.is_causal)
            found += [document[0][SEEN]] * sum(1 for _ in own)
        return np.array(found)

    def measured(self, predicted: np.ndarray, rows: Dataset) -> Measured:
        """The metrics of the rows from the `token_scores` of all their blocks."""
        return Measured(perplexity_metrics(predicted), perplexity(predicted[:, 0], predicted[:, 1]))


@dataclass(frozen=True)
class MaskedLM(LanguageModel):
    """Filling in masked tokens: an encoder with a head that predicts them."""

    options_class = MaskedLMDataArguments
    options: MaskedLMDataArguments
    pipeline_tag = "fill-mask"
    architecture = "ForMaskedLM"
    auto_model = AutoModelForMaskedLM
    metric_names = ("perplexity", "accuracy")
    neutral_example = {"text": "The weather is fine today."}
    is_causal = False

    def adapted_to(self, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Reject a tokenizer without a token for masks."""
        if tokenizer.mask_token is None:
            raise InputError(
                "the tokenizer has no mask token, which train mlm needs; pass another --tokenizer "
                "or --model_name_or_path"
            )
        return self

    def collator(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> BlockCollator:
        return BlockCollator(tokenizer, mlm_probability=self.options.mlm_probability)

    # Answering.

    def answer(
        self, saved: LoadedModel, inputs: list[Any], options: dict[str, Any]
    ) -> list[Answer]:
        """The text of the tokens, with the most probable one instead of each mask, as
        `prediction`."""
        saved.check_positions(inputs)
        tokenizer = saved.tokenizer
        encoded = tokenizer(inputs, padding=True, return_tensors="pt", verbose=False)
        logits = saved.model(**encoded.to(saved.model.device)).logits
        # A mask stands for text, so it is filled neither with a special token nor with a line end.
        others = set(tokenizer.all_special_ids)
        if tokenizer.is_fast:
            others |= blank_tokens(tokenizer)
        logits[..., list(others)] = -torch.inf
        token_ids = encoded["input_ids"]
        is_mask = token_ids == tokenizer.mask_token_id
        found = texts_of(torch.where(is_mask, logits.argmax(-1), token_ids), tokenizer)
        # The text before a mask and the token in its place may both have a space.
        return [{"prediction": " ".join(one["prediction"].split())} for one in found]

    # What the card shows.

    def notes(self) -> list[str]:
        return [
            f"All metrics are computed on the masked tokens ({self.options.mlm_probability:.0%} of "
            "all): the loss is in nats per token, and perplexity is its exponential. They cannot "
            "be compared with the metrics of models with another vocabulary or masking, or of "
            "causal models."
        ]

    def example_line(self, tokenizer: PreTrainedTokenizerBase) -> str:
        return f"The {tokenizer.mask_token} is fine today."


@dataclass(frozen=True)
class CausalLM(LanguageModel):
    """Continuing text: a decoder that predicts the next token."""

    options_class = LanguageModelDataArguments
    pipeline_tag = "text-generation"
    architecture = ("ForCausalLM", "LMHeadModel")
    auto_model = AutoModelForCausalLM
    metric_names = ("bits_per_byte", "perplexity", "accuracy")
    neutral_example = {"text": "Once upon a time"}
    is_causal = True
    answer_options = ("max_new_tokens", "seed", "beams")

    def collator(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> DataCollatorForSeq2Seq:
        # Generation needs padding on the left, but then the first token of a block
        # would have to be predicted from padding.
        return DataCollatorForSeq2Seq(right_sided(tokenizer))

    def prepared(self, start: Start) -> Start:
        if not ignores_first_label(start.model, start.model.dummy_inputs):
            raise InputError(
                f"train causal does not support {type(start.model).__name__}, whose loss compares "
                "each prediction with the current token, not with the next one"
            )
        stop_after_documents(start.model, start.tokenizer)
        return start

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        # The logits at a token predict the next one.
        return super().reduce_logits(logits[:, :-1], labels[:, 1:])

    # Answering.

    def answer(
        self, saved: LoadedModel, inputs: list[Any], options: dict[str, Any]
    ) -> list[Answer]:
        """Text that continues the input, as `prediction`. It is sampled unless `beams` is set, as
        the generation configuration of the model says."""
        new_tokens = options.get("max_new_tokens", MAX_NEW_TOKENS)
        tokenizer = saved.tokenizer
        # A [SEP] would end the text, so no special tokens are added. As in training, the start is
        # not a part of the text, which a tokenizer may encode differently after another token.
        saved.check_positions(inputs, more=new_tokens + 1, add_special_tokens=False)
        found = tokenizer(inputs, add_special_tokens=False, verbose=False)["input_ids"]
        first, _ = document_ids(tokenizer)
        prompts = {"input_ids": [[first, *ids] for ids in found]}
        encoded = tokenizer.pad(prompts, padding_side="left", return_tensors="pt")
        token_ids = saved.model.generate(
            **encoded.to(saved.model.device),
            pad_token_id=tokenizer.pad_token_id,
            max_new_tokens=new_tokens,
            do_sample="beams" not in options,
            num_beams=options.get("beams", 1),
        )
        return texts_of(token_ids[:, encoded["input_ids"].shape[1] :], tokenizer)

    # Measuring.

    def measured(self, predicted: np.ndarray, rows: Dataset) -> Measured:
        documents = len(rows.unique("document"))
        # The number of bytes.
        size = sum(len(text.encode()) for text in rows["text"])
        # The first token of a block is not predicted. It is [CLS] in the first block of a document,
        # and text in all others.
        tokens = int(predicted[:, 1].sum(dtype=np.float64)) + len(predicted) - documents
        factor = tokens / size / math.log(2)
        bits_per_byte = RowMetric(predicted, lambda sums: ratio_of(sums) * factor)
        metrics = {**perplexity_metrics(predicted), "bits_per_byte": bits_per_byte.value}
        return Measured(metrics, bits_per_byte)

    def of_unseen(self, measured: Measured, is_seen: np.ndarray, rows: Dataset) -> RowMetric:
        # The number of tokens per byte must be that of the documents that are left.
        unseen = rows.filter(lambda row: not row[SEEN])
        return self.measured(measured.by_row.rows[~is_seen], unseen).by_row

    # What the card shows.

    def notes(self) -> list[str]:
        return [
            "The loss is in nats per token of this model's vocabulary, and perplexity is its "
            "exponential. bits_per_byte, the loss of the text in bits per UTF-8 byte, can be "
            "compared between models with different vocabularies."
        ]
