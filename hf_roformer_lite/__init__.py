"""A compact Transformer with rotary positions for Hugging Face transformers.

Importing this package registers its models with AutoConfig, AutoModel… and AutoTokenizer, its pipelines with
transformers, and the default targets of adapters with PEFT. Its classes, and torch with them, are loaded when they are
first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .former_modules import know_former_modules
from .registration import finish_registration, register_all
from .version import __version__

if TYPE_CHECKING:
    from .model.configuration_roformer_lite import RoFormerLiteConfig
    from .model.configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig
    from .model.encoder_decoder import RoFormerLiteForConditionalGeneration, RoFormerLiteSeq2SeqModel
    from .model.lm_heads import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
    from .model.modeling_roformer_lite import RoFormerLiteModel, RoFormerLitePreTrainedModel
    from .model.task_heads import (
        RoFormerLiteForMultipleChoice,
        RoFormerLiteForQuestionAnswering,
        RoFormerLiteForSequenceClassification,
        RoFormerLiteForTokenClassification,
    )
    from .model.tokenization_jieba import RoFormerLiteJiebaTokenizer
    from .model.tokenization_roformer_lite import RoFormerLiteTokenizer

MODULES = {
    "RoFormerLiteConfig": "model.configuration_roformer_lite",
    "RoFormerLiteForCausalLM": "model.lm_heads",
    "RoFormerLiteForConditionalGeneration": "model.encoder_decoder",
    "RoFormerLiteForMaskedLM": "model.lm_heads",
    "RoFormerLiteForMultipleChoice": "model.task_heads",
    "RoFormerLiteForQuestionAnswering": "model.task_heads",
    "RoFormerLiteForSequenceClassification": "model.task_heads",
    "RoFormerLiteForTokenClassification": "model.task_heads",
    "RoFormerLiteJiebaTokenizer": "model.tokenization_jieba",
    "RoFormerLiteModel": "model.modeling_roformer_lite",
    "RoFormerLitePreTrainedModel": "model.modeling_roformer_lite",
    "RoFormerLiteSeq2SeqConfig": "model.configuration_roformer_lite_seq2seq",
    "RoFormerLiteSeq2SeqModel": "model.encoder_decoder",
    "RoFormerLiteTokenizer": "model.tokenization_roformer_lite",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{MODULES[name]}", __name__), name)
    finish_registration()
    return value


def __dir__() -> list[str]:
    return [*globals(), *MODULES]


register_all()
know_former_modules()

__all__ = [
    "__version__",
    "RoFormerLiteConfig",
    "RoFormerLiteForCausalLM",
    "RoFormerLiteForConditionalGeneration",
    "RoFormerLiteForMaskedLM",
    "RoFormerLiteForMultipleChoice",
    "RoFormerLiteForQuestionAnswering",
    "RoFormerLiteForSequenceClassification",
    "RoFormerLiteForTokenClassification",
    "RoFormerLiteJiebaTokenizer",
    "RoFormerLiteModel",
    "RoFormerLitePreTrainedModel",
    "RoFormerLiteSeq2SeqConfig",
    "RoFormerLiteSeq2SeqModel",
    "RoFormerLiteTokenizer",
]
