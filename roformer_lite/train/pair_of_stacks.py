"""An encoder–decoder of stacks that were trained before: an encoder, and perhaps a causal model as decoder."""

import sys
from typing import Any

from transformers import AutoModel, AutoModelForCausalLM, PreTrainedTokenizerBase, TrainingArguments

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteForCausalLM
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel
from hf_roformer_lite.model.modeling_roformer_lite_seq2seq import RoFormerLiteForConditionalGeneration

from ..errors import InputError
from ..saved_model import load_with_new_head
from .options import Seq2SeqModelArguments
from .pretrained import check_vocabulary, merged, pretrained_config, pretrained_tokenizer


def pair_of_stacks(
    given: Seq2SeqModelArguments,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    overrides: dict[str, Any],
) -> RoFormerLiteForConditionalGeneration:
    """The encoder given below the decoder given, or below a new one of the size asked for.

    A new decoder reads and predicts tokens by the encoder's table, the only part of it that has been trained before.
    Cross-attention is new in any case.

    Args:
        given: Names of the stacks, and the size of a new decoder.
        args: Of the training.
        tokenizer: The encoder's.
        overrides: Fields of the configuration to change; those of a stack given may change no shape.

    Raises:
        InputError: when a model has another architecture, or the two have different vocabularies.
    """
    encoder_name, decoder_name = given.encoder_name_or_path, given.decoder_name_or_path
    encoder, decoder = _encoder(encoder_name, len(tokenizer)), None
    of_the_pair, of_stacks = _fields_of_sides(overrides)
    if decoder_name is None:
        same_table = {"vocab_size": encoder.config.vocab_size, "embedding_size": encoder.config.embedding_size}
        stack = RoFormerLiteConfig.from_preset(given.size or "mini", **{**same_table, **of_stacks["decoder"]})
        of_the_pair = {"share_embeddings": True, **of_the_pair}
    else:
        _check_same_vocabulary(encoder_name, tokenizer, decoder_name)
        decoder = _decoder(decoder_name, of_stacks["decoder"])
        stack = decoder.config
        of_the_pair = {"tie_word_embeddings": stack.tie_word_embeddings, **of_the_pair}
    config = RoFormerLiteSeq2SeqConfig(
        encoder={**encoder.config.to_dict(), **of_stacks["encoder"]},
        decoder=stack,
        **{**_token_ids(tokenizer), **of_the_pair},
    )
    model = RoFormerLiteForConditionalGeneration(config)
    new = _copy_weights(model, encoder, decoder)
    if args.should_save:
        names = " and ".join(given.pretrained)
        print(f"{names}: the pair has {new} tensors that are new", file=sys.stderr)
    return model


def _fields_of_sides(overrides: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Fields of the pair, and those of each stack, where a field without a side is that of both."""
    names = RoFormerLiteSeq2SeqConfig.__dataclass_fields__
    of_both = {key: value for key, value in overrides.items() if key not in names}
    sides = {side: {**of_both, **overrides.get(side, {})} for side in ("encoder", "decoder")}
    return {key: value for key, value in overrides.items() if key in names and key not in sides}, sides


def _stack_config(option: str, name: str) -> RoFormerLiteConfig:
    """The configuration of a single stack of this package."""
    config = pretrained_config(name)
    if not isinstance(config, RoFormerLiteConfig):
        raise InputError(
            f"--{option} {name}: {config.model_type} is no stack of this package; give what `roformer-lite convert "
            f"{name} OUT --from auto` writes"
        )
    return config


def _encoder(name: str, tokens: int) -> RoFormerLiteModel:
    config = _stack_config("encoder_name_or_path", name)
    if config.is_decoder:
        raise InputError(f"--encoder_name_or_path {name}: it is causal; give it as --decoder_name_or_path")
    check_vocabulary(name, config, tokens)
    fields = {"add_pooling_layer": False}
    return load_with_new_head(AutoModel, name, type(config).from_dict({**config.to_dict(), **fields}))[0]


def _decoder(name: str, fields: dict[str, Any]) -> RoFormerLiteForCausalLM:
    config = _stack_config("decoder_name_or_path", name)
    if not config.is_decoder:
        raise InputError(f"--decoder_name_or_path {name}: it is no causal model; leave it out for a new decoder")
    return load_with_new_head(AutoModelForCausalLM, name, type(config).from_dict(merged(config.to_dict(), fields)))[0]


def _check_same_vocabulary(encoder_name: str, tokenizer: PreTrainedTokenizerBase, decoder_name: str) -> None:
    theirs = pretrained_tokenizer(decoder_name)
    if theirs.get_vocab() != tokenizer.get_vocab():
        raise InputError(
            f"{encoder_name} has {len(tokenizer)} tokens and {decoder_name} others, {len(theirs)} of them, but both "
            "sides of a pair need one vocabulary; train the decoder with the encoder's --tokenizer, or leave out "
            "--decoder_name_or_path"
        )


def _token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "decoder_start_token_id": tokenizer.cls_token_id,
    }


def _copy_weights(
    model: RoFormerLiteForConditionalGeneration, encoder: RoFormerLiteModel, decoder: RoFormerLiteForCausalLM | None
) -> int:
    """Copy the stacks, and with a decoder its LM head, into the pair.

    Returns:
        How many tensors of the pair are left as they were.
    """
    table = "embeddings.word_embeddings.weight"
    given = {f"model.encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    if decoder is None:
        given[f"model.decoder.{table}"] = given[f"model.encoder.{table}"]
    else:
        stack, head = decoder.model.state_dict(), decoder.state_dict()
        given |= {f"model.decoder.{name}": tensor for name, tensor in stack.items()}
        given |= {name: tensor for name, tensor in head.items() if not name.startswith("model.")}
    own = model.state_dict()
    unfit = [name for name, tensor in given.items() if name not in own or own[name].shape != tensor.shape]
    if unfit:
        raise InputError(
            f"{unfit[0]} does not fit the configuration that is asked for; give only --config fields that change no "
            "shape of a stack that is given, such as encoder.hidden_dropout=0.3"
        )
    model.load_state_dict(given, strict=False)
    model.tie_weights()
    return len(own.keys() - given.keys() - set(model.all_tied_weights_keys))
