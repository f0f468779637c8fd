"""A compact Transformer with rotary positions for Hugging Face transformers.

Importing this package registers its models with AutoConfig, AutoModel… and AutoTokenizer.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

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
from .version import __version__

for _config in (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    for _tokenizer in (RoFormerLiteJiebaTokenizer, RoFormerLiteTokenizer):  # the last is the default, all are known
        AutoTokenizer.register(_config, tokenizer_class=_tokenizer, exist_ok=True)
for _auto, _model in (
    (AutoModel, RoFormerLiteModel),
    (AutoModelForMaskedLM, RoFormerLiteForMaskedLM),
    (AutoModelForCausalLM, RoFormerLiteForCausalLM),
    (AutoModelForSequenceClassification, RoFormerLiteForSequenceClassification),
    (AutoModelForTokenClassification, RoFormerLiteForTokenClassification),
    (AutoModelForQuestionAnswering, RoFormerLiteForQuestionAnswering),
    (AutoModelForMultipleChoice, RoFormerLiteForMultipleChoice),
):
    _auto.register(RoFormerLiteConfig, _model, exist_ok=True)
AutoModel.register(RoFormerLiteSeq2SeqConfig, RoFormerLiteSeq2SeqModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(RoFormerLiteSeq2SeqConfig, RoFormerLiteForConditionalGeneration, exist_ok=True)

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
