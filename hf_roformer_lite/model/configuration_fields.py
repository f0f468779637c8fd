"""Names that a configuration does not know: refused with a suggestion where a person wrote them."""

import difflib
from typing import Any

from transformers import GenerationConfig
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

logger = logging.get_logger(__name__)

# What other models call our fields.
_SYNONYMS = {
    "num_hidden_layers": "n_layers n_layer num_layers layers depth num_blocks",
    "num_attention_heads": "n_heads n_head num_heads heads nhead",
    "num_key_value_heads": "n_kv_heads num_kv_heads",
    "hidden_size": "d_model dim width n_embd hidden_dim model_dim",
    "embedding_size": "embedding_dim d_embed",
    "intermediate_size": "d_ff ffn_dim ff_dim mlp_dim n_inner dim_feedforward ffn_size",
    "hidden_act": "activation activation_function act_fn",
    "hidden_dropout": "dropout dropout_rate hidden_dropout_prob resid_pdrop",
    "attention_dropout": "attention_probs_dropout_prob attn_pdrop attn_dropout",
    "norm_eps": "layer_norm_eps layer_norm_epsilon rms_norm_eps",
    "max_position_embeddings": "n_positions n_ctx max_seq_len max_sequence_length context_length",
    "tie_word_embeddings": "tie_embeddings tied_embeddings",
    "share_embeddings": "share_all_embeddings",
}
_OUR_NAMES = {theirs: ours for ours, names in _SYNONYMS.items() for theirs in names.split()}
# What transformers writes into config.json or takes as an argument, today or in older versions, besides the fields of
# its base class.
_OF_TRANSFORMERS = set(
    "model_type transformers_version auto_map quantization_config compression_config torch_dtype name_or_path "
    "num_labels attn_implementation experts_implementation output_attentions per_layer_config rope_theta rope_scaling "
    "partial_rotary_factor torchscript use_bfloat16 tf_legacy_loss pruned_heads tie_encoder_decoder finetuning_task "
    "tokenizer_class prefix task_specific_params xla_device gradient_checkpointing sep_token_id adapters "
    "is_decoder add_cross_attention cross_attention_hidden_size decoder_start_token_id use_cache".split()
)
_CLOSE = 0.8  # similarity of names at which an unknown one in a file is taken for a misspelling


def check_field_names(config: PreTrainedConfig, given: dict[str, Any]) -> None:
    """Check the names of `given`, the arguments that are no fields of `config`.

    What was saved (it has a `model_type` or a `transformers_version`) must go on loading, whatever version of
    transformers or other program wrote it: there, names that look like misspelt ones are only warned of.

    Raises:
        TypeError: for a name that nothing reads, with the one that was probably meant.
    """
    unknown = [name for name in given if not _is_known(config, name)]
    is_saved = "model_type" in given or "transformers_version" in given
    for name in unknown:
        close = difflib.get_close_matches(name, config.__dataclass_fields__, n=1, cutoff=_CLOSE if is_saved else 0.6)
        meant = _OUR_NAMES.get(name) or next(iter(close), None)
        message = f"{type(config).__name__} has no field {name!r}"
        if meant in config.__dataclass_fields__:
            message += f"; did you mean {meant!r}?"
        elif meant and "encoder" in config.__dataclass_fields__:
            message += f"; did you mean {meant!r} of encoder= and decoder=?"
        else:
            message += "."
        if not is_saved:
            raise TypeError(message)
        if meant:
            logger.warning_once(f"{message} Nothing reads it.")


def _is_known(config: PreTrainedConfig, name: str) -> bool:
    return (
        name.startswith("_")
        or name in config.__dataclass_fields__
        or hasattr(type(config), name)  # a property with a setter
        or name in _OF_TRANSFORMERS
        or hasattr(GenerationConfig(), name)  # older versions kept the settings of generation in the config
    )
