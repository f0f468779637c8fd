"""Options of a stack that depend on others: what cannot be together is refused, by field and value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .configuration_roformer_lite import RoFormerLiteConfig


def list_of_biases(setting: bool | Sequence[str], matrices: Sequence[str]) -> bool | list[str]:
    """`setting` in its shortest form: True where a list has all of `matrices`, False where it is empty."""
    if isinstance(setting, bool) or not set(setting) <= set(matrices):
        return setting  # wrong names are refused with all other mistakes
    named = [matrix for matrix in matrices if matrix in setting]
    return len(named) == len(matrices) if len(named) in (0, len(matrices)) else named


def check_biases(config: RoFormerLiteConfig) -> None:
    """Refuse biases of matrices that there are not, and of some matrices where the layers have other ones.

    Raises:
        ValueError: naming the field, its value and what would be right.
    """
    feed_forward = ("gate", "up", "down") if config.gated_mlp else ("up", "down")
    for field, matrices in (("attention_bias", ("q", "k", "v", "o")), ("mlp_bias", feed_forward)):
        setting = getattr(config, field)
        if isinstance(setting, bool):
            continue
        right = f"True, False, or a list of some of {', '.join(matrices)}"
        config.require(set(setting) <= set(matrices), field, right)
        config.require(config.layer_style == "standard", field, "True or False, but in standard layers")


def check_dropout_places(config: RoFormerLiteConfig) -> None:
    """Refuse places of dropout that there are not, and a choice of them where the layers have other ones.

    Raises:
        ValueError: naming the field, its value and what would be right.
    """
    places, field = config.hidden_dropout_places, "hidden_dropout_places"
    if places is not None:
        known = ("embeddings", "attention", "mlp")
        config.require(set(places) <= set(known), field, f"None, or a list of some of {', '.join(known)}")
        config.require(config.layer_style == "standard", field, "None, but in standard layers")


def check_token_dropout(config: RoFormerLiteConfig) -> None:
    """Refuse token dropout of an id that there is not, and where later tokens would change earlier ones.

    Raises:
        ValueError: naming the field, its value and what would be right.
    """
    mask = config.token_dropout_mask_id
    if mask is not None:
        inside = f"None, or from 0 to vocab_size - 1 = {config.vocab_size - 1}"
        config.require(0 <= mask < config.vocab_size, "token_dropout_mask_id", inside)
        config.require(not config.is_decoder, "token_dropout_mask_id", "None with is_decoder=True")


def check_layer_style(config: RoFormerLiteConfig) -> None:
    """Refuse options that the layers of the other styles do not have.

    Raises:
        ValueError: naming the field, its value and what would be right.
    """
    fixed: dict[str, Any] = {}
    if config.layer_style != "standard":
        fixed |= {"norm_type": "layernorm", "gated_mlp": False, "rotary_value": False, "mlp_dropout": 0.0}
        fixed |= {"chunk_size_feed_forward": 0}
    if config.layer_style != "standard" or config.norm_placement != "pre":
        fixed |= {"first_attention_norm": True}
    if config.layer_style != "parallel_heads":
        fixed |= {"num_mlp_layers": 1, "qkv_mlp_layers": 1, "qkv_intermediate_size": None, "qkv_dropout": None}
    if config.layer_style == "parallel_heads":
        fixed |= {"norm_placement": "pre", "head_dim": config.hidden_size, "attention_bias": True}
        fixed |= {"num_key_value_heads": config.num_attention_heads, "norm_bias": True}
        fixed |= {"cross_attention_hidden_size": None}
        config.require(config.qkv_intermediate_size > 0, "qkv_intermediate_size", "a positive number")
        if config.add_cross_attention:  # its queries meet the encoder's states in place of their own
            fixed |= {"use_cache": False}
    elif config.layer_style == "walkthrough":
        fixed |= {"norm_placement": "post", "add_cross_attention": False}
    where = f"with layer_style={config.layer_style!r}"
    for field, value in fixed.items():
        also = " and norm_placement='post'" if field == "first_attention_norm" else ""
        config.require(getattr(config, field) == value, field, f"{value!r} {where}{also}")


def check_classifier(config: RoFormerLiteConfig) -> None:
    """Refuse options of a classifier's dense layer where there is none.

    Raises:
        ValueError: naming the field, its value and what would be right.
    """
    if config.classifier_activation is None:
        for field in ("classifier_norm", "classifier_input_dropout"):
            config.require(not getattr(config, field), field, "False without classifier_activation")
        config.require(
            config.classifier_pooling != "late",
            "classifier_pooling",
            "mean, cls or last without classifier_activation",
        )
