"""A compact Transformer with rotary positions for Hugging Face transformers.

Importing this package registers its models with AutoConfig, AutoModel… and AutoTokenizer, its pipelines with
transformers, and the default targets of adapters with PEFT. Its classes, and torch with them, are loaded when they are
first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .registration import register_all
from .version import __version__

if TYPE_CHECKING:
    from .configuration_roformer_lite import RoFormerLiteConfig
    from .configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig
    from .heads_roformer_lite import (
        RoFormerLiteForMultipleChoice,
        RoFormerLiteForQuestionAnswering,
        RoFormerLiteForSequenceClassification,
        RoFormerLiteForTokenClassification,
    )
    from .lm_heads_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
    from .modeling_roformer_lite import RoFormerLiteModel, RoFormerLitePreTrainedModel
    from .seq2seq_roformer_lite import RoFormerLiteForConditionalGeneration, RoFormerLiteSeq2SeqModel
    from .tokenization_jieba import RoFormerLiteJiebaTokenizer
    from .tokenization_roformer_lite import RoFormerLiteTokenizer

MODULES = {
    "RoFormerLiteConfig": "configuration_roformer_lite",
    "RoFormerLiteForCausalLM": "lm_heads_roformer_lite",
    "RoFormerLiteForConditionalGeneration": "seq2seq_roformer_lite",
    "RoFormerLiteForMaskedLM": "lm_heads_roformer_lite",
    "RoFormerLiteForMultipleChoice": "heads_roformer_lite",
    "RoFormerLiteForQuestionAnswering": "heads_roformer_lite",
    "RoFormerLiteForSequenceClassification": "heads_roformer_lite",
    "RoFormerLiteForTokenClassification": "heads_roformer_lite",
    "RoFormerLiteJiebaTokenizer": "tokenization_jieba",
    "RoFormerLiteModel": "modeling_roformer_lite",
    "RoFormerLitePreTrainedModel": "modeling_roformer_lite",
    "RoFormerLiteSeq2SeqConfig": "configuration_roformer_lite_seq2seq",
    "RoFormerLiteSeq2SeqModel": "seq2seq_roformer_lite",
    "RoFormerLiteTokenizer": "tokenization_roformer_lite",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return [*globals(), *MODULES]


register_all()

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
