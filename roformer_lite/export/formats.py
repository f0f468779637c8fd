"""The formats of other runtimes: their names, the libraries they need, and what they can hold of a
model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import InputError, require_packages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_roformer_lite import RoFormerLiteConfig

Engine = Literal["torch", "onnx"]  # The libraries by which `predict` and the page compute.
# The graphs that transformers exports, and its names of them.
GRAPH_FORMATS = {"onnx": "onnx", "torch": "dynamo"}
FORMATS = (*GRAPH_FORMATS, "ctranslate2", "gguf")
# These are written into a folder of their name, below the tokenizer.
FOLDER_FORMATS = ("onnx", "ctranslate2")
QUANTIZATIONS = {  # how the weights can be stored, besides float32
    "onnx": ("int8",),
    "ctranslate2": ("int8", "int8_float32", "float16", "bfloat16"),
    "gguf": ("f16", "bf16", "q8_0"),
}
_WEIGHTS = ("*.safetensors", "*.bin")
_LIBRARIES = {  # that writing and running a format needs, and the extra that brings them
    "onnx": dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "export"),
    "ctranslate2": {"ctranslate2": "ctranslate2"},
    "gguf": {"gguf": "gguf"},
}


def check_format(format: str, quantization: str | None = None) -> None:
    """Refuse a format that there is not, or that cannot store weights as `quantization` says (None:
    as float32).

    Raises:
        InputError: naming the option and what there is.
    """
    if format not in FORMATS:
        raise InputError(f"--format {format} is unknown; choose one of {', '.join(FORMATS)}")
    kinds = QUANTIZATIONS.get(format, ())
    if quantization is not None and quantization not in kinds:
        choice = (
            f"choose one of {', '.join(kinds)}"
            if kinds
            else f"{', '.join(QUANTIZATIONS)} have some"
        )
        raise InputError(
            f"--quantization {quantization}: --format {format} has no such type; {choice}"
        )


def check_libraries(format: str) -> None:
    """Refuse a format whose libraries are not installed.

    Raises:
        InputError: naming them, and the extra that brings them.
    """
    require_packages(f"--format {format}", _LIBRARIES.get(format, {}))


def check_engine(engine: Engine, directory: str, device: str | None = None) -> None:
    """Refuse an engine that cannot read `directory` here, before anything is loaded.

    Raises:
        InputError: naming the option and what would be right.
    """
    has_graphs = (Path(directory) / "onnx").is_dir()
    if engine == "torch":
        has_weights = any(next(Path(directory).glob(name), None) for name in _WEIGHTS)
        if has_graphs and not has_weights:
            raise InputError(f"{directory} was exported for onnx: give --engine onnx")
        return
    if not has_graphs:
        raise InputError(
            f"--engine onnx: {directory} has no folder onnx; `roformer-lite export DIR OUT` writes it"
        )
    if device not in (None, "cpu"):
        raise InputError(f"--device {device} is for --engine torch; onnx computes on the CPU here")
    check_libraries("onnx")


@dataclass(frozen=True)
class Requirements:
    """The demands of a runtime of fixed layers on one stack.

    Args:
        runtime: Its name, for messages.
        config: The stack's configuration.
        prefix: What stands before the field's name in messages: `encoder.` or `decoder.` in a pair.
    """

    runtime: str
    config: "RoFormerLiteConfig"
    prefix: str = ""

    def require(self, holds: bool, field: str, why: str) -> None:
        """Raise `InputError` about `field` unless the demand holds; `why` is what the runtime has
        instead."""
        if not holds:
            raise InputError(
                f"{self.prefix}{field}={getattr(self.config, field)!r} cannot be exported: {self.runtime} {why}. "
                "--format onnx takes every model"
            )

    def require_standard_layers(self) -> None:
        """Full attention in standard layers, and embeddings of the layers' width."""
        config = self.config
        is_full = "sliding_attention" not in config.layer_types
        same_eps = not config.embedding_norm or config.embedding_norm_eps in (None, config.norm_eps)
        for field, holds, why in (
            ("layer_style", config.layer_style == "standard", "has standard layers alone"),
            ("num_hidden_layers", config.num_hidden_layers > 0, "needs at least one layer"),
            ("vocab_size", config.vocab_size > 0, "takes tokens, and no vectors"),
            (
                "layer_types",
                is_full,
                "attends to all tokens in every layer, or counts its window otherwise",
            ),
            (
                "embedding_size",
                config.embedding_size == config.hidden_size,
                "has no projection to hidden_size",
            ),
            ("rotary_value", not config.rotary_value, "rotates queries and keys alone"),
            (
                "first_attention_norm",
                config.first_attention_norm,
                "has a norm before the attention of every layer",
            ),
            (
                "token_dropout_mask_id",
                config.token_dropout_mask_id is None,
                "scales all embeddings alike",
            ),
            (
                "attention_bias",
                isinstance(config.attention_bias, bool),
                "has biases in all matrices or in none",
            ),
            (
                "mlp_bias",
                isinstance(config.mlp_bias, bool),
                "has biases in all matrices or in none",
            ),
            (
                "embedding_norm_eps",
                same_eps,
                f"has one eps for all norms, here norm_eps={config.norm_eps}",
            ),
        ):
            self.require(holds, field, why)


def vocabulary_of(tokenizer: "PreTrainedTokenizerBase", size: int) -> list[str | None]:
    """The token of each row of an embedding; None for rows that the tokenizer has no token for.

    Args:
        tokenizer: Of the model.
        size: Rows of the embedding.

    Raises:
        InputError: when the tokenizer has more tokens than the embedding has rows.
    """
    tokens = {index: token for token, index in tokenizer.get_vocab().items()}
    if max(tokens) >= size:
        raise InputError(
            f"the tokenizer has {max(tokens) + 1} tokens, but vocab_size={size}: it is another model's"
        )
    return [tokens.get(index) for index in range(size)]


def named_vocabulary(tokenizer: "PreTrainedTokenizerBase", size: int) -> list[str]:
    """As `vocabulary_of`; rows without a token have a name that no text has."""
    return [
        token or f"<unused {index}>" for index, token in enumerate(vocabulary_of(tokenizer, size))
    ]
