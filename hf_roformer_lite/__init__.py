"""A compact Transformer with rotary positions for Hugging Face transformers.

Importing this package registers its models with AutoConfig, AutoModel… and AutoTokenizer, and the
default targets of adapters with PEFT. `padding_free` makes the layers of any transformers model
compute only real tokens.
"""

from .model.configuration_roformer_lite import RoFormerLiteConfig
from .model.configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig
from .model.heads_roformer_lite import (
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForMultipleChoice,
    RoFormerLiteForQuestionAnswering,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
)
from .model.modeling_roformer_lite import RoFormerLiteModel, RoFormerLitePreTrainedModel
from .model.modeling_roformer_lite_seq2seq import (
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteSeq2SeqModel,
)
from .model.tokenization_jieba import RoFormerLiteJiebaTokenizer
from .model.tokenization_roformer_lite import RoFormerLiteTokenizer
from .padding_free import PaddingFreeError, padding_free
from .registration import register_all
from .version import __version__

register_all()

__all__ = [
    "PaddingFreeError",
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
    "padding_free",
]
