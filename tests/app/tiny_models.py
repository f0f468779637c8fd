"""A tiny saved model for every task that the page knows, with random weights."""

import json
from pathlib import Path

from conftest import build, seq2seq_config, stack_config

import hf_roformer_lite as rl
from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteSeq2SeqConfig

TEXTS = ["a fine film", "far too long for what it says", "fine", "Ann Lee met Bob in Rome"]
NAMES = ["O", "B-PER", "I-PER", "B-LOC"]
MULTI, REGRESSION = {"problem_type": "multi_label_classification"}, {"problem_type": "regression"}

# The class of each model, fields of its configuration, its task, and what its training would have noted.
MODELS = {
    "classify": (rl.RoFormerLiteForSequenceClassification, {"id2label": dict(enumerate("abc"))}, "classify", {}),
    "labels": (
        rl.RoFormerLiteForSequenceClassification,
        {"id2label": dict(enumerate("abc")), **MULTI},
        "classify",
        {},
    ),
    "number": (rl.RoFormerLiteForSequenceClassification, {"num_labels": 1, **REGRESSION}, "classify", {}),
    "pairs": (rl.RoFormerLiteForSequenceClassification, {"num_labels": 2}, "classify", {"pairs": True}),
    "entities": (
        rl.RoFormerLiteForTokenClassification,
        {"id2label": dict(enumerate(NAMES))},
        "tag",
        {"unit": "words"},
    ),
    "tags": (rl.RoFormerLiteForTokenClassification, {"id2label": {0: "X", 1: "O"}}, "tag", {"unit": "characters"}),
    "seq2seq": (rl.RoFormerLiteForConditionalGeneration, {}, "seq2seq", {}),
    "causal": (rl.RoFormerLiteForCausalLM, {"is_decoder": True}, "causal", {}),
    "mlm": (rl.RoFormerLiteForMaskedLM, {}, "mlm", {}),
    "embed": (rl.RoFormerLiteModel, {}, "embed", {}),
    "rerank": (rl.RoFormerLiteForSequenceClassification, {"num_labels": 1}, "rerank", {"pairs": True}),
}


def save_model(kind: str, directory: Path) -> Path:
    """Save the model of `MODELS` that `kind` names, with a tokenizer."""
    model_class, fields, task, settings = MODELS[kind]
    tokenizer = rl.RoFormerLiteTokenizer.train(TEXTS * 4, vocab_size=300, model_max_length=48)
    if kind == "causal":
        tokenizer.add_bos_token = True
    config = stack_config(vocab_size=len(tokenizer), **fields)
    if kind == "seq2seq":
        stacks = seq2seq_config()
        stacks.encoder.vocab_size = stacks.decoder.vocab_size = len(tokenizer)
        config = RoFormerLiteSeq2SeqConfig(encoder=stacks.encoder, decoder=stacks.decoder, max_length=12)
    build(model_class, config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "results.json").write_text(json.dumps({"task": task, "settings": settings}))
    return directory
