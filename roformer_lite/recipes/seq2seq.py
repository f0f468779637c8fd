"""The task seq2seq: text in, text out."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_roformer_lite.conversion.checkpoint_files import reason
from hf_roformer_lite.model.configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig

from ..data.blocks import document_ids, stop_after_documents
from ..data.data_files import Row, text_of
from ..data.reader import Reader
from ..errors import InputError
from ..measuring.baselines import Predictions, text_to_text_baselines
from ..measuring.metrics import Metrics, sentence_chrf, translation_metrics
from ..measuring.report import Outcome
from ..measuring.significance import Measured, corpus_score
from ..options.tasks import Seq2SeqDataArguments
from .base import Answer, AnsweringRecipe, FittedBaseline, Start
from .loaded_model import Input, LoadedModel, texts_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction


# The severity of the worst possible prediction. As chrF is at most 100, every wrong prediction has
# a severity of at least 1.
MAX_SEVERITY = 101


@dataclass(frozen=True)
class Seq2SeqReader(Reader):
    """Reads a `source` and a `target`. Every reader first looks for the tokenizer of sacrebleu,
    which will measure on the rows.

    Raises:
        InputError: if sacrebleu lacks it.
    """

    input_columns = ("source",)
    target_columns = ("target",)

    options: Seq2SeqDataArguments

    def __post_init__(self):
        check_bleu_tokenizer(self.options.bleu_tokenizer)

    def select_columns(self, row: Row) -> Row:
        return {
            "source": text_of(row, self.options.source_column, "source_column"),
            "target": text_of(row, self.options.target_column, "target_column"),
            "origin": row["origin"],
        }


class Seq2Seq(AnsweringRecipe):
    """Text in, text out.

    The model is an encoder–decoder, which generates by beam search.
    """

    options_class = Seq2SeqDataArguments
    reader_class = Seq2SeqReader
    pipeline_tag = "translation"
    # The second one is that of Marian.
    architecture = ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel")
    auto_model = AutoModelForSeq2SeqLM
    config_class = RoFormerLiteSeq2SeqConfig
    answer_options = ("beams", "max_new_tokens")
    metric_names = ("chrf", "bleu", "exact_match")
    neutral_example = {"source": "a line of text", "target": ""}

    options: Seq2SeqDataArguments

    # Encoding.

    @property
    def max_length(self) -> int:
        return self.options.max_source_length

    def encode_batch(
        self, batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, training: bool
    ) -> dict[str, Any]:
        inputs = tokenizer(batch["source"], truncation=True)
        targets = tokenizer(
            text_target=batch["target"],
            truncation=True,
            max_length=self.options.max_target_length,
        )
        return {**inputs, "labels": targets["input_ids"]}

    def lengths(self, encoded: Dataset) -> list[int]:
        pairs = zip(encoded["input_ids"], encoded["labels"], strict=True)
        return [len(source) + len(target) for source, target in pairs]

    def collator(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> DataCollatorForSeq2Seq:
        # The model makes the inputs of the decoder from the labels.
        return DataCollatorForSeq2Seq(tokenizer, model=model)

    # The model, and its training.

    def prepared(self, start: Start) -> Start:
        args: Any = start.args
        model: Any = start.model
        tokenizer = start.tokenizer
        generation_config = model.generation_config
        # The limits of the checkpoint belong to other targets. The length includes the start token.
        generation_config.update(
            max_length=args.generation_max_length or self.options.max_target_length + 1,
            max_new_tokens=None,
            min_length=0,
            min_new_tokens=None,
            num_beams=args.generation_num_beams or generation_config.num_beams,
        )
        stop_after_documents(model, tokenizer)
        if getattr(model.config, "decoder_start_token_id", None) is None:
            # A pair of two encoders has no start token yet.
            model.config.decoder_start_token_id, _ = document_ids(tokenizer)
        # In training, the decoder of mBART starts with the language of the target, and that of
        # mBART-50 learns it as the first token. It need not be the language of the checkpoint.
        target = tokenizer(text_target=["a"], return_tensors="pt")["input_ids"]
        prepare = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if prepare is not None:
            generation_config.decoder_start_token_id = int(prepare(target)[0, 0])
        if generation_config.forced_bos_token_id is not None:
            first_id = int(target[0, 0])
            is_special = first_id in tokenizer.all_special_ids
            generation_config.forced_bos_token_id = first_id if is_special else None
        return start

    # Choosing a checkpoint.

    def metrics_in_training(self, args: Any) -> list[str]:
        if args.predict_with_generate:
            return super().metrics_in_training(args)
        return ["loss"]

    def choose(
        self, prediction: EvalPrediction, rows: Dataset, tokenizer: PreTrainedTokenizerBase
    ) -> Metrics:
        token_ids = np.asarray(prediction.predictions)[: len(rows)]
        # The Trainer pads with -100.
        token_ids = np.where(token_ids < 0, tokenizer.pad_token_id, token_ids)
        predicted = self.predicted(texts_of(token_ids, tokenizer))
        return self.measured(predicted, rows).metrics

    # Answering.

    def truncates(self, positions: int | None, tokenizer: PreTrainedTokenizerBase) -> bool:
        return True

    def text_columns(self) -> list[str]:
        return [self.options.source_column]

    def answer(
        self, saved: LoadedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The generated text as `prediction`."""
        new_tokens = options.get("max_new_tokens", 0)
        if saved.positions is not None and new_tokens > saved.positions:
            raise InputError(
                f"--max_new_tokens {new_tokens}: this model has positions for only "
                f"{saved.positions} tokens"
            )
        limits: dict[str, Any] = {}
        if "beams" in options:
            limits |= {"num_beams": options["beams"], "do_sample": False}
        if new_tokens:
            # The saved limit would apply as well.
            limits |= {"max_new_tokens": new_tokens, "max_length": None}
        encoded = saved.tokenizer(
            inputs,
            truncation=True,
            padding=True,
            return_tensors="pt",
        ).to(saved.model.device)
        token_ids = saved.model.generate(**encoded, **limits)
        return texts_of(token_ids, saved.tokenizer)

    # Measuring.

    def predicted(self, answers: list[Answer]) -> list[str]:
        return [answer["prediction"] for answer in answers]

    def measured(self, predicted: list[str], rows: Dataset) -> Measured:
        """The metrics of a line of text for each row."""
        from sacrebleu.metrics import CHRF

        targets = rows["target"][:]
        metrics = translation_metrics(predicted, targets, self.options.bleu_tokenizer)
        return Measured(metrics, corpus_score(CHRF(), predicted, targets))

    def outcome(self, row: Row, answer: Answer) -> Outcome:
        text = answer["prediction"]
        chrf = sentence_chrf(text, row["target"])
        columns = {
            "source": row["source"],
            "target": row["target"],
            "prediction": text,
            "chrf": round(chrf, 2),
        }
        severity = 0.0 if text == row["target"] else MAX_SEVERITY - chrf
        return Outcome(row["origin"], columns, severity)

    def baselines(self, rows: DatasetDict, fitted: FittedBaseline | None) -> Predictions:
        sources = {split: own_rows["source"][:] for split, own_rows in rows.items()}
        train = (sources.pop("train"), rows["train"]["target"][:])
        return text_to_text_baselines(train, sources)

    # What the card shows.

    def notes(self) -> list[str]:
        return [
            f"BLEU (tokenizer {self.options.bleu_tokenizer}) and chrF are computed by sacrebleu "
            f"{version('sacrebleu')} on the unmodified reference text. Both range from 0 to 100, "
            "and exact_match ranges from 0 to 1."
        ]


def check_bleu_tokenizer(name: str) -> None:
    """Reject a tokenizer that sacrebleu does not have here.

    Raises:
        InputError: with the reason, and all tokenizers.
    """
    from sacrebleu.metrics import BLEU

    try:
        translation_metrics(["a"], ["a"], name)
    # Some tokenizers need a package or a download.
    except (ImportError, LookupError, OSError, RuntimeError) as error:
        raise InputError(
            f"--bleu_tokenizer {name} is not available: {reason(error)}; the tokenizers of "
            f"sacrebleu are {', '.join(BLEU.TOKENIZERS)}"
        ) from error
