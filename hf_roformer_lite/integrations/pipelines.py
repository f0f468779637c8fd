"""Pipelines of the encoder–decoder: `text2text-generation`, `translation` and `summarization`.

transformers 5 has these tasks no longer, and says so before it looks at its registry.
`register_pipelines` brings them back for this package's encoder–decoder; any other model is
refused, as without it.
"""

from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, pipelines
from transformers.pipelines.base import Pipeline

from ..model.configuration_roformer_lite import RoFormerLiteSeq2SeqConfig

# where neither the model nor the caller says how long: as in the pipelines of transformers
MAX_NEW_TOKENS = 256


class RoFormerLiteText2TextPipeline(Pipeline):
    """Text in, text out, by an encoder–decoder.

    As in transformers 4, `pipe(text)` gives `[{"generated_text": ...}]`, one entry for each of
    `num_return_sequences`. A list of texts gives a list with one entry for each text; with several
    sequences, a list of lists. A dataset or generator gives an iterator over what `pipe(text)`
    gives for each. With `batch_size` texts go through the model together; padding is left out of
    all products but attention's.

    Options, for `pipeline(...)` or for one call:
        clean_up_tokenization_spaces (`bool`): As `tokenizer.decode` has it. Default: the
            tokenizer's own setting.
        truncation (`bool`): Cut texts to the tokenizer's `model_max_length`. Default: the
            tokenizer's own.
        return_tensors (`bool`): Token ids `(length,)`, padded as generated, under
            `generated_token_ids` in place of the text.
        All others go to `generate` (`num_beams`, `max_new_tokens`, `do_sample`, `generation_config`
        …).

    Raises:
        ValueError: for a model other than this package's encoder–decoder.
        TypeError: for an input that is no text.
    """

    _load_tokenizer = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = (
        False
    )

    return_name = "generated"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        model_type = getattr(self.model.config, "model_type", None)
        if model_type != RoFormerLiteSeq2SeqConfig.model_type:
            raise ValueError(
                f"model_type={model_type!r}: transformers 5 has no task {self.task!r}; hf_roformer_lite adds it for "
                f"{RoFormerLiteSeq2SeqConfig.model_type!r} alone."
            )

    def __call__(self, inputs: Any, **options: Any) -> Any:
        if isinstance(inputs, list) and not inputs:
            return []
        answers = super().__call__(inputs, **options)
        if isinstance(inputs, list) and all(len(entries) == 1 for entries in answers):
            return [entry for (entry,) in answers]
        return answers

    def _sanitize_parameters(
        self,
        truncation: bool | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generation: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        postprocess = {
            "return_tensors": return_tensors,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        preprocess = {} if truncation is None else {"truncation": truncation}
        return (
            preprocess,
            generation,
            {key: value for key, value in postprocess.items() if value is not None},
        )

    def preprocess(self, text: str, **options: Any) -> dict[str, torch.Tensor]:
        """One text to `input_ids` and `attention_mask`, each `(1, L)`."""
        if not isinstance(text, str):
            raise TypeError(
                f"{text!r} is a {type(text).__name__}; the input of {self.task!r} must be text."
            )
        return self.tokenizer(text, return_tensors="pt", **options)

    def _forward(
        self, inputs: dict[str, torch.Tensor], **generation: Any
    ) -> dict[str, torch.Tensor]:
        """`(B, L)` ids to `(B, sequences, Lt)` ids; `sequences` is `num_return_sequences`."""
        if "generation_config" not in generation:
            given = self.model.generation_config.to_diff_dict() | generation
            if not {"max_length", "max_new_tokens"} & given.keys():
                generation["max_new_tokens"] = MAX_NEW_TOKENS
        output = self.model.generate(**inputs, tokenizer=self.tokenizer, **generation)
        # an output object with return_dict_in_generate
        token_ids = getattr(output, "sequences", output)
        return {"token_ids": token_ids.unflatten(0, (inputs["input_ids"].shape[0], -1))}

    def postprocess(
        self,
        outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        """The sequences `(1, sequences, Lt)` of one text to one entry each."""
        if return_tensors:
            return [
                {f"{self.return_name}_token_ids": token_ids}
                for token_ids in outputs["token_ids"][0]
            ]
        texts = self.tokenizer.batch_decode(
            outputs["token_ids"][0],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=clean_up_tokenization_spaces,
        )
        return [{f"{self.return_name}_text": text} for text in texts]


class RoFormerLiteTranslationPipeline(RoFormerLiteText2TextPipeline):
    """As `RoFormerLiteText2TextPipeline`; answers are under `translation_text`."""

    return_name = "translation"


class RoFormerLiteSummarizationPipeline(RoFormerLiteText2TextPipeline):
    """As `RoFormerLiteText2TextPipeline`; answers are under `summary_text`."""

    return_name = "summary"


TASKS: dict[str, type[Pipeline]] = {
    "text2text-generation": RoFormerLiteText2TextPipeline,
    "translation": RoFormerLiteTranslationPipeline,
    "summarization": RoFormerLiteSummarizationPipeline,
}


def register_pipelines() -> None:
    """Make `transformers.pipeline` know the tasks of this module, but for those it knows already.

    A task goes into the registry as transformers' own do. `PIPELINE_REGISTRY.register_pipeline`
    would mark the class as custom code, and what `save_pretrained` of a pipeline writes could only
    be opened with `trust_remote_code`.
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
        # older versions of transformers have no such table
        getattr(pipelines, "REMOVED_TASKS", {}).pop(task, None)


__all__ = [
    "RoFormerLiteSummarizationPipeline",
    "RoFormerLiteText2TextPipeline",
    "RoFormerLiteTranslationPipeline",
]
