"""The requirements of runtimes with fixed layers, and the vocabulary in their files."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig

from .weight_map import ConversionError


@dataclass(frozen=True)
class Requirements:
    """Checks one stack against the requirements of a runtime with fixed layers.

    Args:
        runtime: The name of the runtime, for messages.
        config: The stack's configuration.
        prefix: The prefix of field names in messages: `encoder.` or `decoder.` in a pair.
    """

    runtime: str
    config: RoFormerLiteConfig
    prefix: str = ""

    def require(self, holds: bool, field: str, why: str) -> None:
        """Raise a `ConversionError` about `field` unless the requirement `holds`; `why` completes a
        sentence about the runtime."""
        if not holds:
            raise ConversionError(
                f"{self.prefix}{field}={getattr(self.config, field)!r}: {self.runtime} {why}. "
                "--format onnx takes almost every model"
            )

    def require_value(self, field: str, value: object, why: str) -> None:
        """Require that `field` has this value; see `require`."""
        self.require(getattr(self.config, field) == value, field, why)

    def require_standard_layers(self) -> None:
        """Require full attention in standard layers, and embeddings of the layers' width."""
        config = self.config
        self.require_value("layer_style", "standard", "has only standard layers")
        self.require(config.num_hidden_layers > 0, "num_hidden_layers", "needs at least one layer")
        self.require(config.vocab_size > 0, "vocab_size", "takes tokens, not vectors")
        self.require(
            "sliding_attention" not in config.layer_types,
            "layer_types",
            "attends to all tokens in every layer, or counts its window differently",
        )
        self.require_value("embedding_size", config.hidden_size, "has no projection to hidden_size")
        self.require_value("rotary_value", False, "rotates only queries and keys")
        why = "has a norm before the attention of every layer"
        self.require_value("first_attention_norm", True, why)
        self.require_value("token_dropout_mask_id", None, "scales all embeddings alike")
        for field in ("attention_bias", "mlp_bias"):
            is_one = isinstance(getattr(config, field), bool)
            self.require(is_one, field, "has biases in all matrices or in none")
        if config.embedding_norm and config.embedding_norm_eps is not None:
            why = f"has one eps for all norms, here norm_eps={config.norm_eps}"
            self.require_value("embedding_norm_eps", config.norm_eps, why)


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str | None]:
    """The token of each row of an embedding; None for rows without a token.

    Args:
        tokenizer: The tokenizer of the model.
        size: The number of rows of the embedding.

    Raises:
        ConversionError: if the tokenizer has more tokens than the embedding has rows.
    """
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    if max(tokens) >= size:
        raise ConversionError(
            f"the tokenizer has {max(tokens) + 1} tokens, but vocab_size={size}: "
            "it belongs to another model"
        )
    return [tokens.get(index) for index in range(size)]


def unused_token(index: int) -> str:
    """A name for a row without a token, which occurs in no text."""
    return f"<unused {index}>"


def named_vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """Like `vocabulary_of`, with a name for rows without a token."""
    tokens = vocabulary_of(tokenizer, size)
    return [token or unused_token(index) for index, token in enumerate(tokens)]
