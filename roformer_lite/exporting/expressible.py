"""What a runtime cannot run is refused, by field and value, before anything is written."""

from dataclasses import dataclass

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig

from ..errors import InputError


@dataclass(frozen=True)
class Requirements:
    """The demands of a runtime on one stack.

    Args:
        runtime: Its name, for messages.
        config: The stack's configuration.
        prefix: What stands before the field's name in messages: `encoder.` or `decoder.` in a pair.
    """

    runtime: str
    config: RoFormerLiteConfig
    prefix: str = ""

    def require(self, holds: bool, field: str, why: str) -> None:
        """Raise `InputError` about `field` unless the demand holds; `why` is what the runtime has instead."""
        if not holds:
            raise InputError(
                f"{self.prefix}{field}={getattr(self.config, field)!r} cannot be exported: {self.runtime} {why}. "
                "--format onnx takes every model"
            )

    def require_standard_layers(self) -> None:
        """What every runtime but ONNX asks for: full attention in standard layers, embeddings of the layers' width."""
        config = self.config
        self.require(config.layer_style == "standard", "layer_style", "has standard layers alone")
        self.require(config.num_hidden_layers > 0, "num_hidden_layers", "needs at least one layer")
        self.require(config.vocab_size > 0, "vocab_size", "takes tokens, and no vectors")
        is_full = "sliding_attention" not in config.layer_types
        self.require(is_full, "layer_types", "attends to all tokens in every layer, or counts its window otherwise")
        is_wide = config.embedding_size == config.hidden_size
        self.require(is_wide, "embedding_size", f"has no projection to hidden_size={config.hidden_size}")
        self.require(not config.rotary_value, "rotary_value", "rotates queries and keys alone")
        why = "has a norm before the attention of every layer"
        self.require(config.first_attention_norm, "first_attention_norm", why)
        no_dropout = config.token_dropout_mask_id is None
        self.require(no_dropout, "token_dropout_mask_id", "scales all embeddings alike")
        for field in ("attention_bias", "mlp_bias"):
            is_uniform = isinstance(getattr(config, field), bool)
            self.require(is_uniform, field, "has biases in all matrices of a part or in none")
        if config.embedding_norm:
            is_same = config.embedding_norm_eps in (None, config.norm_eps)
            self.require(is_same, "embedding_norm_eps", f"has one eps for all norms, here norm_eps={config.norm_eps}")
