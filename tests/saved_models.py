"""Tiny saved models of every kind for which `predict` writes answers.

Their weights are random. The files that a training leaves next to a model are written as well."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import build, seq2seq_config, stack_config
from program import write_json
from transformers import BertConfig, BertModel, BertTokenizer, PreTrainedModel

import hf_roformer_lite as rl
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE
from roformer_lite.baseline.crf import WordTagger
from roformer_lite.baseline.files import JoinedBaseline, save_joined
from roformer_lite.baseline.join import Join
from roformer_lite.baseline.ngrams import NgramClassifier

TEXTS = ["a fine film", "far too long for what it says", "fine", "Ann Lee met Bob in Rome"]
NAMES = ["O", "B-PER", "I-PER", "B-LOC"]
MULTI = {"problem_type": "multi_label_classification"}
REGRESSION = {"problem_type": "regression"}
LABELS = {"id2label": dict(enumerate("bca"))}
CLASSIFIER = rl.RoFormerLiteForSequenceClassification
HEAD = {"lm_head_transform": True, "lm_head_bias": True}

ONE_TEXT = {"pairs": False, "label_separator": ";"}
# Each entry has the class of the model, fields of its configuration, its task, and the settings its
# training would have noted.
MODELS = {
    "classify": (CLASSIFIER, LABELS, "classify", ONE_TEXT),
    "labels": (CLASSIFIER, {**LABELS, **MULTI}, "classify", ONE_TEXT),
    "number": (CLASSIFIER, {"num_labels": 1, **REGRESSION}, "classify", {}),
    "pairs": (CLASSIFIER, {"num_labels": 2}, "classify", {"pairs": True}),
    "tag": (
        rl.RoFormerLiteForTokenClassification,
        {"id2label": dict(enumerate(NAMES))},
        "tag",
        {"unit": "words"},
    ),
    "seq2seq": (rl.RoFormerLiteForConditionalGeneration, {}, "seq2seq", {}),
    "causal": (
        rl.RoFormerLiteForCausalLM,
        {"is_decoder": True, "tie_word_embeddings": False},
        "causal",
        {},
    ),
    "mlm": (rl.RoFormerLiteForMaskedLM, {}, "mlm", {}),
    # `convert --to roformer` accepts models of this kind.
    "roformer": (rl.RoFormerLiteForMaskedLM, {**EXPRESSIBLE, **HEAD}, "mlm", {}),
    "embed": (rl.RoFormerLiteModel, {}, "embed", {}),
    "rerank": (CLASSIFIER, {"num_labels": 1}, "rerank", {"pairs": True}),
}


def save_model(kind: str, directory: Path) -> Path:
    """Save the model `kind` of `MODELS` with a tokenizer, unless the directory exists.

    A baseline joins the answers of the kinds "classify, joined" and "tag, joined"."""
    if directory.exists():
        return directory
    model_class, fields, task, settings = MODELS[kind.removesuffix(", joined")]
    tokenizer = rl.RoFormerLiteTokenizer.train(TEXTS * 4, vocab_size=300, model_max_length=48)
    config = stack_config(vocab_size=len(tokenizer), **fields)
    if kind == "seq2seq":
        config = seq2seq_config(tie_word_embeddings=False)
        config.encoder.vocab_size = config.decoder.vocab_size = len(tokenizer)
    model = build(model_class, config)
    if kind == "seq2seq":
        model.generation_config.max_length = 12
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if kind.endswith("joined"):
        save_joined(directory, JoinedBaseline(fitted_baseline(task), Join(weight=0.3, scale=2.0)))
    if kind in ("embed", "rerank"):
        modules = {"": "sentence_transformers.models.Transformer"}
        if kind == "embed":
            (directory / "1_Pooling").mkdir()
            modes = {"word_embedding_dimension": config.hidden_size, "pooling_mode": "mean"}
            write_json(directory / "1_Pooling" / "config.json", modes)
            modules["1_Pooling"] = "sentence_transformers.models.Pooling"
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": modules[path]}
            for i, path in enumerate(modules)
        ]
        write_json(directory / "modules.json", listed)
    results = {
        "task": task,
        "settings": settings,
        "main_metric": "accuracy",
        "rows": {"test": 1200},
        "metrics": {"test": {"accuracy": 0.8125}},
    }
    write_json(directory / "results.json", results)
    return directory


def fitted_baseline(task: str) -> NgramClassifier | WordTagger:
    """A baseline that has learned some labels or tags of `TEXTS`."""
    if task == "classify":
        return NgramClassifier.fit(TEXTS, np.array([0, 1, 2, 0]), num_labels=3)
    sentences = [text.split() for text in TEXTS]
    tags = [["O" if word.islower() else "B-PER" for word in words] for words in sentences]
    return WordTagger.fit(sentences, tags, NAMES)


def save_bert(
    directory: Path,
    words: Iterable[str],
    model_class: type[PreTrainedModel] = BertModel,
    **fields: Any,
) -> Path:
    """Save a BERT with random weights, and a tokenizer of these words."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    sizes = {
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "initializer_range": 0.3,
    }
    config = BertConfig(**{**sizes, **fields})
    torch.manual_seed(0)
    model_class(config).save_pretrained(directory)
    tokenizer = BertTokenizer(vocabulary, model_max_length=config.max_position_embeddings)
    tokenizer.save_pretrained(directory)
    return directory


def save_sentence_encoder(directory: Path, words: Iterable[str], **pooling: object) -> Path:
    """Save a BERT with the settings of its pooling, as sentence-transformers does."""
    save_bert(directory, words)
    (directory / "1_Pooling").mkdir()
    write_json(directory / "1_Pooling" / "config.json", pooling)
    return directory
