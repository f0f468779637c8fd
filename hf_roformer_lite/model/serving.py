"""Whether the inference server vLLM can serve a model."""

from importlib import import_module
from typing import Any

from .configuration_roformer_lite import RoFormerLiteConfig

# Endings of the names of classes that vLLM takes.
SERVED_HEADS = ("Model", "ForCausalLM", "ForSequenceClassification")


def check_vllm(config: RoFormerLiteConfig) -> None:
    """Reject a model that vLLM would silently compute differently.

    vLLM takes only the stack of layers from the model and brings its own attention, windows,
    pooling and LM head.

    Raises:
        ValueError: naming the feature that cannot be served, and the remedy.
    """
    # The module is imported by name, because a statement would make vLLM a requirement of every
    # bundle: transformers checks the imports of remote code.
    settings = import_module("vllm.config").get_current_vllm_config().model_config
    architectures = config.architectures or ["RoFormerLiteModel"]
    head = architectures[0].removeprefix("RoFormerLite")
    generates = settings.runner_type == "generate"
    if head not in SERVED_HEADS or generates != (head == "ForCausalLM"):
        raise ValueError(
            f"{config.architectures} can't be served by vLLM's runner {settings.runner_type!r}: "
            "it generates with causal models, and pools with encoders and sequence classifiers. "
            "For embeddings, save the encoder: "
            "AutoModel.from_pretrained(DIR).save_pretrained(OUT)."
        )
    _check_fields(config, head)
    _check_rope(config)
    if not generates:
        _check_pooling(config, settings.pooler_config.seq_pooling_type)


def _check_fields(config: RoFormerLiteConfig, head: str) -> None:
    """Reject fields with values that vLLM ignores."""
    required: dict[str, Any] = {"layer_style": "standard", "token_dropout_mask_id": None}
    if head == "ForCausalLM":
        required["lm_head_transform"] = False
        required["embedding_size"] = config.hidden_size
    has_sliding_layers = "sliding_attention" in (config.layer_types or ())
    if not (config.is_decoder and has_sliding_layers):
        # The windows of vLLM are one token shorter to each side of an encoder's token, and they
        # hold in all layers where `layer_types` names no sliding layer.
        required["sliding_window"] = None
    for field, value in required.items():
        given = getattr(config, field)
        if given != value:
            raise ValueError(f"{field}={given!r} can't be served by vLLM: it must be {value!r}.")


def _check_rope(config: RoFormerLiteConfig) -> None:
    """Reject scalings that depend on the longest text in the same batch."""
    for parameters in config.rope_parameters_of_layers().values():
        rope_type = parameters.get("rope_type")
        if rope_type in ("dynamic", "longrope"):
            raise ValueError(
                f"rope_type={rope_type!r} can't be served by vLLM: results would depend on other "
                "requests."
            )


def _check_pooling(config: RoFormerLiteConfig, pooled: str | None) -> None:
    """Reject a pooling that differs from the pooling of the server."""
    pooling = config.classifier_pooling
    if pooling.upper() != pooled:
        option = f'{{"seq_pooling_type": "{pooling.upper()}"}}'
        raise ValueError(
            f"classifier_pooling={pooling!r}, but vLLM would use {pooled}: "
            f"start vLLM with --pooler-config '{option}'. vLLM supports CLS, LAST and MEAN."
        )
