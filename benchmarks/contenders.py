"""Small models with random weights and without dropout, and the work that is timed.

A model has a family, such as `bert`, and a task, such as `classify`. Without dropout, all
contenders of a comparison have the same outcome, which shows that they do the same work. This
module does not import hf_roformer_lite, because the caller chooses and registers its version.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from .workload import PAD, START, Batch

Inputs = dict[str, torch.Tensor]

ROFORMER_LITE = "roformer_lite"
NUM_LABELS = 8
MAX_TOKENS = 512  # This is the number of rows in a table of learned positions.
AUTO_CLASSES = {
    "encoder": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "masked-lm": "AutoModelForMaskedLM",
    "causal-lm": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
}
TOKEN_IDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": 3}


# Models


@dataclass(frozen=True)
class Size:
    """The width and depth of a stack, which are the same for both stacks of an encoder–decoder."""

    width: int
    layers: int
    heads: int
    inner: int


# The presets of RoFormerLiteConfig have the same names.
SIZES = {
    "tiny": Size(width=128, layers=2, heads=2, inner=512),
    "mini": Size(width=256, layers=4, heads=4, inner=1024),
    "small": Size(width=512, layers=4, heads=8, inner=2048),
    "base": Size(width=768, layers=12, heads=12, inner=3072),
}
# The size of all-MiniLM-L6-v2.
MINILM = Size(width=384, layers=6, heads=12, inner=1536)


def fields_of_stack(size: Size, vocab_size: int) -> dict[str, Any]:
    """The fields that the configurations of all stacks have."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "intermediate_size": size.inner,
        "max_position_embeddings": MAX_TOKENS,
        "pad_token_id": PAD,
    }


def fields_of_bert(task: str, size: Size, vocab_size: int) -> dict[str, Any]:
    return {**fields_of_stack(size, vocab_size), "num_labels": NUM_LABELS}


def fields_of_deberta(task: str, size: Size, vocab_size: int) -> dict[str, Any]:
    """The fields of the published models, whose attention has relative positions."""
    fields = fields_of_bert(task, size, vocab_size)
    return {
        **fields,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 256,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
    }


def fields_of_gated(task: str, size: Size, vocab_size: int) -> dict[str, Any]:
    """A gated feed-forward has three matrices, and gets two thirds of the inner width, rounded to a
    multiple of 8."""
    fields = fields_of_stack(size, vocab_size)
    fields["intermediate_size"] = round(size.inner * 2 / 3 / 8) * 8
    fields["tie_word_embeddings"] = True
    fields["num_labels"] = NUM_LABELS
    return {**fields, **TOKEN_IDS, "cls_token_id": START, "sep_token_id": 3}


def fields_of_bart(task: str, size: Size, vocab_size: int) -> dict[str, Any]:
    fields = {
        "vocab_size": vocab_size,
        "d_model": size.width,
        "max_position_embeddings": MAX_TOKENS,
        "activation_function": "gelu",
        "decoder_start_token_id": START,
        "forced_eos_token_id": None,
    }
    for side in ("encoder", "decoder"):
        fields[f"{side}_layers"] = size.layers
        fields[f"{side}_attention_heads"] = size.heads
        fields[f"{side}_ffn_dim"] = size.inner
    return {**fields, **TOKEN_IDS}


def fields_of_t5(task: str, size: Size, vocab_size: int) -> dict[str, Any]:
    fields = {
        "vocab_size": vocab_size,
        "d_model": size.width,
        "d_kv": size.width // size.heads,
        "d_ff": size.inner,
        "num_layers": size.layers,
        "num_heads": size.heads,
        "decoder_start_token_id": START,
    }
    return {**fields, **TOKEN_IDS}


def fields_of_roformer_lite(task: str, size: Size, vocab_size: int) -> dict[str, Any]:
    fields = fields_of_stack(size, vocab_size)
    if task == "seq2seq":
        return {"encoder": fields, "decoder": fields, "share_embeddings": True}
    return {**fields, "is_decoder": task == "causal-lm", "num_labels": NUM_LABELS}


FIELDS: dict[str, Callable[[str, Size, int], dict[str, Any]]] = {
    "bert": fields_of_bert,
    "deberta-v2": fields_of_deberta,
    "modernbert": fields_of_gated,
    "llama": fields_of_gated,
    "bart": fields_of_bart,
    "marian": fields_of_bart,
    "t5": fields_of_t5,
    ROFORMER_LITE: fields_of_roformer_lite,
}


def model_type_of(family: str, task: str) -> str:
    if family != ROFORMER_LITE:
        return family
    if task == "seq2seq":
        return "roformer_lite_seq2seq"
    return "roformer_lite"


def config_of(family: str, task: str, size: Size, vocab_size: int) -> PreTrainedConfig:
    fields = FIELDS[family](task, size, vocab_size)
    config = AutoConfig.for_model(model_type_of(family, task), **fields)
    # The Trainer sets this field as well.
    config.use_cache = False
    stacks = [getattr(config, name) for name in config.sub_configs]
    for part in (config, *stacks):
        remove_dropout(part)
    return config


def remove_dropout(config: PreTrainedConfig) -> None:
    for name, value in config.to_dict().items():
        if "dropout" in name and isinstance(value, float):
            setattr(config, name, 0.0)


def new_model(
    family: str,
    task: str,
    size: Size,
    vocab_size: int,
    attention: str | None = None,
    **fields: Any,
) -> PreTrainedModel:
    """A model with random weights, which are the same at every call.

    Args:
        attention: The attention implementation; None leaves the choice to the model.
        fields: Other values of fields of the configuration.
    """
    auto_class = getattr(transformers, AUTO_CLASSES[task])
    config = config_of(family, task, size, vocab_size)
    config.update(fields)
    torch.manual_seed(0)
    return auto_class.from_config(config, attn_implementation=attention)


def share_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Let both models use the same memory, because copies of the same weights can differ in speed
    by a fifth, depending on their addresses."""
    for weight, other in zip(source.parameters(), target.parameters(), strict=True):
        other.data = weight.data


# Work


def inputs_of(task: str, batch: Batch, target: Batch | None = None) -> Inputs:
    """The inputs of a training step, as returned by the collators of transformers.

    Args:
        target: The target of an encoder–decoder.
    """
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if task == "classify":
        inputs["labels"] = batch.input_ids[:, 0] % NUM_LABELS
    elif task == "masked-lm":
        inputs["labels"] = batch.masked_lm_labels()
    elif task == "causal-lm":
        inputs["labels"] = batch.labels()
    elif target is not None:
        inputs["labels"] = target.labels()
    return inputs


class Step:
    """The forward pass, the loss and the backward pass. There is no optimizer, which would be the
    same for all, so models that share their weights stay equal."""

    def __init__(self, model: PreTrainedModel, batches: list[Inputs]) -> None:
        self.model = model.train()
        self.batches = batches
        self.loss = 0.0

    def __call__(self) -> None:
        for inputs in self.batches:
            self.model.zero_grad(set_to_none=True)
            loss = self.model(**inputs).loss
            loss.backward()
        self.loss = loss.item()

    def outcome(self) -> list[float]:
        """The loss and the norm of the gradient of the last batch."""
        gradients = [weight.grad for weight in self.model.parameters()]
        norms = [gradient.norm() for gradient in gradients if gradient is not None]
        return [self.loss, torch.stack(norms).norm().item()]


class Evaluation:
    """The forward pass and the loss, without gradients."""

    def __init__(self, model: PreTrainedModel, batches: list[Inputs]) -> None:
        self.model = model.eval()
        self.batches = batches
        self.loss = 0.0

    @torch.no_grad()
    def __call__(self) -> None:
        for inputs in self.batches:
            loss = self.model(**inputs).loss
        self.loss = loss.item()

    def outcome(self) -> list[float]:
        """The loss of the last batch."""
        return [self.loss]
