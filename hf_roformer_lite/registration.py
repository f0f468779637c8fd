"""Registers the package: its classes with transformers' Auto classes, and its default targets
with PEFT."""

from importlib import import_module

import transformers
from transformers.models.auto import modeling_auto

from .integrations.peft_targets import register_peft_targets
from .model import reference_layers  # noqa: F401, it adds layers
from .model.hub import AUTO_CLASSES
from .model.tokenization_jieba import RoFormerLiteJiebaTokenizer
from .model.tokenization_roformer_lite import RoFormerLiteTokenizer

# Transformers also has tables of class names, which `register` does not fill. The Trainer reads
# them to decide whether label smoothing must shift the labels, and to name the task on a model
# card.
TABLES_OF_NAMES = {
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForMultipleChoice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}


def register_all() -> None:
    """Register configurations, models and tokenizers with the Auto classes, and the targets of
    adapters with PEFT; called when the package is imported."""
    package = import_module(__package__)
    for model_type, class_names in AUTO_CLASSES.items():
        classes = {auto: getattr(package, name) for auto, name in class_names.items()}
        config = classes.pop("AutoConfig")
        transformers.AutoConfig.register(model_type, config, exist_ok=True)
        for auto, model in classes.items():
            getattr(transformers, auto).register(config, model, exist_ok=True)
            names = getattr(modeling_auto, TABLES_OF_NAMES[auto])
            names[model_type] = model.__name__
            # `transformers serve` and vLLM look for a class in transformers itself.
            setattr(transformers, model.__name__, model)
        # The class that is registered last becomes the default.
        for tokenizer in (RoFormerLiteJiebaTokenizer, RoFormerLiteTokenizer):
            transformers.AutoTokenizer.register(config, tokenizer_class=tokenizer, exist_ok=True)
    register_peft_targets()
