"""Variants of a configuration that differ from it in one factor."""

import json
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from hf_roformer_lite import RoFormerLiteConfig
from roformer_lite.errors import InputError
from roformer_lite.options.run import Run
from roformer_lite.recipes import RECIPES
from roformer_lite.train.models import parse_overrides

from .training_changes import CHANGES

DEFAULT = "default"
VARIANTS: dict[str, dict[str, Any]] = {
    "rope": {"position_embedding_type": "rope"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "learned": {"position_embedding_type": "learned"},
    "none": {"position_embedding_type": "none"},
    "pre-norm": {"norm_placement": "pre"},
    "post-norm": {"norm_placement": "post"},
    "layernorm": {"norm_type": "layernorm"},
    "rmsnorm": {"norm_type": "rmsnorm"},
    "gated": {"gated_mlp": True},
    "ungated": {"gated_mlp": False},
    "squared-relu": {"hidden_act": "relu2"},
}
# The inner width of a feed-forward is a multiple of this number.
WIDTH_MULTIPLE = 8


def make_config(run: Run, assignments: list[str]) -> PreTrainedConfig:
    """The configuration of a new model with `assignments` (`name=value`), but without its
    vocabulary and labels.

    Raises:
        InputError: if no model can be made with it.
    """
    recipe = RECIPES[run.task](run.data)
    model = run.model
    fields = recipe.config_fields() | parse_overrides(
        [*model.config, *assignments], recipe.config_class
    )
    if not model.size:
        fields = recipe.new_model | fields
    try:
        return recipe.config_class.from_preset(model.size or "mini", **fields)
    except (StrictDataclassError, ValueError) as error:
        raise InputError(f"--config {' '.join([*model.config, *assignments])}: {error}") from error


def assignments(run: Run, variant: str) -> list[str]:
    """The further values of `--config` that change the default to `variant`; empty if the default
    is this variant.

    Both stacks of an encoder–decoder change. A gated feed-forward has three matrices instead of
    two, so its inner width is multiplied by two thirds, or by one and a half if the gate is
    removed. The table of learned positions has a row for each token of the longest text.
    """
    args = run.data
    config = make_config(run, [])
    stacks = {"": (config, RECIPES[run.task](args).max_length)}
    if not isinstance(config, RoFormerLiteConfig):
        stacks = {
            "encoder.": (config.encoder, args.max_source_length),
            "decoder.": (config.decoder, args.max_target_length),
        }
    found = []
    for side, (stack, longest) in stacks.items():
        fields = {
            name: value
            for name, value in VARIANTS[variant].items()
            if getattr(stack, name) != value
        }
        if "gated_mlp" in fields:
            factor = 2 / 3 if fields["gated_mlp"] else 3 / 2
            multiples = max(1, round(stack.intermediate_size * factor / WIDTH_MULTIPLE))
            fields["intermediate_size"] = multiples * WIDTH_MULTIPLE
        if fields.get("position_embedding_type") == "learned":
            fields["max_position_embeddings"] = longest
        for name, value in fields.items():
            text = value if isinstance(value, str) else json.dumps(value)
            found.append(f"{side}{name}={text}")
    return found


def planned(run: Run, chosen: list[str]) -> dict[str, list[str]]:
    """The assignments of the default, and of each of the `chosen` variants except for the default
    itself.

    Raises:
        InputError: for an unknown variant, or if no model can be built.
    """
    plan: dict[str, list[str]] = {DEFAULT: []}
    for variant in chosen:
        if variant not in VARIANTS and variant != DEFAULT:
            known = ", ".join([DEFAULT, *VARIANTS, *CHANGES])
            raise InputError(f"--variants {variant} is not known; it must be one of {known}")
        if variant == DEFAULT:
            continue
        changes = assignments(run, variant)
        if changes:
            make_config(run, changes)
            plan[variant] = changes
    return plan
