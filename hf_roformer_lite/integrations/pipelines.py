"""Pipelines of the encoder–decoder: `text2text-generation`, `translation` and `summarization`.

Transformers 5 has removed these tasks, and refuses them before it looks at its registry.
`register_pipelines` brings them back for the encoder–decoder of this package. Any other model is
still refused.
"""

from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, pipelines
from transformers.pipelines.base import Pipeline

from ..model.configuration_roformer_lite import RoFormerLiteSeq2SeqConfig

# The limit if neither the model nor the caller sets one, as in the pipelines of transformers.
MAX_NEW_TOKENS = 256


class RoFormerLiteText2TextPipeline(Pipeline):
    """Generates text from text with an encoder–decoder.

    As in transformers 4, `pipe(text)` gives `[{"generated_text": ...}]`, one entry for each of
    `num_return_sequences`. A list of texts gives a list with one entry for each text, or a list of
    lists if there are several sequences. A dataset or generator gives an iterator over the results
    of `pipe(text)` for each text. With `batch_size`, several texts go through the model together.

    Options, for `pipeline(...)` or for one call:
        clean_up_tokenization_spaces (`bool`, *optional*): As in `tokenizer.decode`. The default is
            the setting of the tokenizer.
        truncation (`bool`, *optional*): Whether texts are cut to the `model_max_length` of the
            tokenizer. The default is the setting of the tokenizer.
        return_tensors (`bool`, defaults to `False`): Gives token ids `(length,)`, padded as
            generated, under `generated_token_ids` instead of the text.
        All others go to `generate` (`num_beams`, `max_new_tokens`, `do_sample`,
        `generation_config` …).

    Raises:
        ValueError: for a model other than the encoder–decoder of this package.
        TypeError: for an input that is not text.
    """

    # Transformers declares these flags as None, and model and tokenizer as optional or without
    # their methods.
    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False
    model: Any
    tokenizer: Any

    return_name = "generated"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        model_type = getattr(self.model.config, "model_type", None)
        if model_type != RoFormerLiteSeq2SeqConfig.model_type:
            raise ValueError(
                f"model_type={model_type!r}: transformers 5 has no task {self.task!r}; "
                f"hf_roformer_lite adds it for {RoFormerLiteSeq2SeqConfig.model_type!r} only."
            )

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        if isinstance(inputs, list) and not inputs:
            return []
        outputs = super().__call__(inputs, *args, **options)
        if isinstance(inputs, list) and all(len(entries) == 1 for entries in outputs):
            return [entry for (entry,) in outputs]
        return outputs

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generation: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        preprocess = {}
        if truncation is not None:
            preprocess["truncation"] = truncation
        postprocess = {}
        if return_tensors is not None:
            postprocess["return_tensors"] = return_tensors
        if clean_up_tokenization_spaces is not None:
            postprocess["clean_up_tokenization_spaces"] = clean_up_tokenization_spaces
        return preprocess, generation, postprocess

    def preprocess(self, input_: Any, **options: Any) -> dict[str, Any]:
        """One text to `input_ids` and `attention_mask`, each `(1, L)`."""
        if not isinstance(input_, str):
            raise TypeError(
                f"{input_!r} is a {type(input_).__name__}; the input of {self.task!r} must be text."
            )
        return self.tokenizer(input_, return_tensors="pt", **options)

    def _forward(self, input_tensors: dict[str, Any], **generation: Any) -> Any:
        """Ids `(B, L)` to `token_ids` `(B, num_return_sequences, Lt)`."""
        config = generation.get("generation_config") or self.model.generation_config
        given = config.to_diff_dict() | generation
        if not {"max_length", "max_new_tokens"} & given.keys():
            generation["max_new_tokens"] = MAX_NEW_TOKENS
        output = self.model.generate(**input_tensors, tokenizer=self.tokenizer, **generation)
        # The output is an object with return_dict_in_generate.
        token_ids = getattr(output, "sequences", output)
        num_texts = input_tensors["input_ids"].shape[0]
        return {"token_ids": token_ids.unflatten(0, (num_texts, -1))}

    # The base class declares a dictionary as the type of each option.
    def postprocess(  # type: ignore[override]
        self,
        outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """The sequences `(1, num_return_sequences, Lt)` of one text to one entry each."""
        sequences = outputs["token_ids"][0]
        if return_tensors:
            return [{f"{self.return_name}_token_ids": token_ids} for token_ids in sequences]
        texts = self.tokenizer.batch_decode(
            sequences,
            skip_special_tokens=True,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        return [{f"{self.return_name}_text": text} for text in texts]


class RoFormerLiteTranslationPipeline(RoFormerLiteText2TextPipeline):
    """Like `RoFormerLiteText2TextPipeline`, with the text under `translation_text`."""

    return_name = "translation"


class RoFormerLiteSummarizationPipeline(RoFormerLiteText2TextPipeline):
    """Like `RoFormerLiteText2TextPipeline`, with the text under `summary_text`."""

    return_name = "summary"


TASKS: dict[str, type[Pipeline]] = {
    "text2text-generation": RoFormerLiteText2TextPipeline,
    "translation": RoFormerLiteTranslationPipeline,
    "summarization": RoFormerLiteSummarizationPipeline,
}


def register_pipelines() -> None:
    """Register the tasks of this module with transformers, except those that it already has.

    They are registered like transformers' own tasks. `PIPELINE_REGISTRY.register_pipeline` would
    mark the class as custom code, and a saved pipeline could only be opened with
    `trust_remote_code`.
    """
    registry = pipelines.PIPELINE_REGISTRY
    for task, pipeline_class in TASKS.items():
        if task in registry.get_supported_tasks():
            continue
        registry.supported_tasks[task] = {
            "impl": pipeline_class,
            "pt": (AutoModelForSeq2SeqLM,),
            "type": "text",
        }
        pipelines.REMOVED_TASKS.pop(task, None)


__all__ = [
    "RoFormerLiteSummarizationPipeline",
    "RoFormerLiteText2TextPipeline",
    "RoFormerLiteTranslationPipeline",
]
