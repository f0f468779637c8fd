"""The model that a training starts from: a new one, one that was trained before, in its own class, or a pair of two
stacks that were."""

import difflib
import json
import sys
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteForCausalLM
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel
from hf_roformer_lite.model.modeling_roformer_lite_seq2seq import RoFormerLiteForConditionalGeneration
from hf_roformer_lite.padding_free import padding_free

from ..errors import InputError
from ..saved_model import check_vocabulary, find_file, is_ours, load_config, load_with_new_head, read_object, reason
from ..tasks.base import Task
from .options import ModelArguments, Seq2SeqModelArguments
from .run import Run
from .tokenizers import pretrained_tokenizer


def make_model(run: Run, task: Task, args: TrainingArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model given with a head for the task, one of the stacks given, or a new one of the size asked for.

    Raises:
        InputError: when the fields of the configuration do not fit together, or no model can be loaded.
    """
    overrides = parse_overrides(run.model.config, config_class_of(run.model, task.model.config_class))
    try:
        if run.model.model_name_or_path:
            model = pretrained_for_task(run, task, args, tokenizer, overrides)
        elif run.model.pretrained:
            model = pair_of_stacks(run.model, args, tokenizer, overrides)
        else:
            fields = {} if run.model.size else task.model.new_model
            model = _new_model(run, task, tokenizer, {**fields, **task.model.config_fields(), **overrides})
        _check_positions(task, model)
        return model
    except InputError:
        raise  # it says already what is wrong, and in which file
    except (StrictDataclassError, ValueError, OSError, RuntimeError) as error:  # Runtime: too large for the memory
        raise InputError(f"no model can be made with these options (--size, --config): {reason(error)}") from error


def _check_positions(task: Task, model: PreTrainedModel) -> None:
    """Refuse texts longer than a table of learned positions, before the first long one stops the training."""
    rows = []
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and ("position" in name or name.endswith("wpe")):
            before = 0 if table.padding_idx is None else table.padding_idx + 1  # RoBERTa counts from there
            rows.append(table.num_embeddings - max(before, getattr(table, "offset", 0)))  # BART's first two are unused
    lengths = {name: getattr(task.args, name, 0) for name in ("max_length", "max_source_length", "max_target_length")}
    for name, length in {**lengths, "block_size": getattr(task.args, "longest_block", 0)}.items():
        if rows and length > min(rows):
            raise InputError(
                f"--{name} {length}, given or by default, is more than the model has positions for; give --{name} "
                f"{min(rows)} or less"
            )


def _new_model(run: Run, task: Task, tokenizer: PreTrainedTokenizerBase, fields: dict[str, Any]) -> PreTrainedModel:
    tokens = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
    }
    if "decoder_start_token_id" in task.model.config_class.__dataclass_fields__:
        tokens["decoder_start_token_id"] = tokenizer.cls_token_id
    config = task.model.config_class.from_preset(run.model.size or "mini", **{**tokens, **fields})
    return task.model.auto_model.from_config(config)


def config_class_of(model: ModelArguments, otherwise: type[PreTrainedConfig]) -> type[PreTrainedConfig]:
    """The class of the configuration that `--config` changes: that of the model given, or of a new one."""
    return type(pretrained_config(model.model_name_or_path)) if model.model_name_or_path else otherwise


def parse_overrides(assignments: list[str], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """`["hidden_dropout=0.3", "decoder.num_hidden_layers=3"]` as arguments of `config_class.from_preset`.

    Values are JSON (`0.3`, `true`, `null`, `["full_attention"]`); anything else is taken as text.

    Raises:
        InputError: for an assignment without `=`, and for a field that `config_class` does not have.
    """
    own = (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig)
    stack_fields = set(RoFormerLiteConfig.__dataclass_fields__) if issubclass(config_class, own) else set()
    sides = [side for side in ("encoder", "decoder") if side in config_class.__dataclass_fields__]
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        side, dot, own = name.rpartition(".")
        valid = stack_fields if dot else stack_fields | set(config_class.__dataclass_fields__) - set(sides)
        if not equals or (dot and side not in sides) or own not in valid:
            close = difflib.get_close_matches(own, valid, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close and own not in valid else ""
            raise InputError(
                f"--config {assignment}: name=value with a field of {config_class.__name__} is needed{hint}"
            )
        if own == "vocab_size":
            raise InputError(f"--config {assignment}: the tokenizer determines it; use --vocab_size")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        (fields.setdefault(side, {}) if dot else fields)[own] = value
    return fields


def pretrained_config(name: str) -> PreTrainedConfig:
    """The configuration of a saved model, be it of this package or of transformers.

    Raises:
        InputError: when there is none, a field is wrong, or transformers has no class for it.
    """
    path = find_file(name, "config.json")
    model_type = None if path is None else read_object(path).get("model_type")
    if path is not None and not (isinstance(model_type, str) and model_type in CONFIG_MAPPING):
        raise InputError(
            f"{path}: transformers has no model_type={model_type!r}; convert the model with `roformer-lite convert "
            f"{name} OUT --from SYSTEM`, whose --help lists the systems, and give OUT here"
        )
    return load_config(name)


def pretrained_for_task(
    run: Run, task: Task, args: TrainingArguments, tokenizer: PreTrainedTokenizerBase, fields: Mapping[str, Any]
) -> PreTrainedModel:
    """The model of `--model_name_or_path`, with its own head if that fits the task and the labels of the training
    data, with a new one otherwise.

    Args:
        run, task, args: Of the training; the task knows the labels.
        tokenizer: The vocabulary of the model must hold all of its tokens.
        fields: Fields of the configuration that shall not be the given model's.

    Raises:
        InputError: when a file is missing or wrong, or the model does not fit the options.
    """
    name = run.model.model_name_or_path
    given = pretrained_config(name)
    _check_fits(given, name, task)
    why_new_head = task.model.why_new_head(given)  # before `config_fields`, which gives the labels in their order
    of_task = {field: value for field, value in task.model.config_fields().items() if hasattr(given, field)}
    check_vocabulary(tokenizer, given, name)
    if not why_new_head:
        config = type(given).from_dict(merged(given.to_dict(), {**of_task, **fields}))
        model, new = load_with_new_head(task.model.auto_model, name, config)
        message = f"the model gets a new head for this task: {', '.join(new)}" if new else ""
    else:
        model, new = with_new_head(task.model.auto_model, name, {**of_task, **fields}), ["the head"]
        message = f"{why_new_head}; the training starts with a new head"
    task.model.has_new_head, task.model.has_own_class = bool(new), is_ours(model)
    try:
        padding_free(model)
    except ValueError as error:
        if getattr(task.args, "packing", False):
            raise InputError(f"--packing: documents of one row would see each other, as {error}") from error
        message = f"{message}; {error} Its padding is computed".removeprefix("; ")
    if message and args.should_save:
        print(f"{name}: {message}", file=sys.stderr)
    return model


def _check_fits(given: PreTrainedConfig, name: str, task: Task) -> None:
    """Refuse what would only be noticed after the training, or never."""
    if given.is_encoder_decoder != (task.name == "seq2seq"):
        kind, fitting = ("a single stack", "--encoder_name_or_path")
        if given.is_encoder_decoder:
            kind, fitting = "an encoder–decoder", "--model_name_or_path of train seq2seq"
        raise InputError(f"{name}: {given.model_type} is {kind}; give it as {fitting}")
    if getattr(task.args, "text_scores", False) and not is_ours(given):
        raise InputError(
            f"--text_scores: a model of type {given.model_type} has no place for them; leave the option out, or start "
            f"from what `roformer-lite convert {name} OUT --from auto` writes"
        )


def with_new_head(auto_model: type, name: str, fields: Mapping[str, Any]) -> PreTrainedModel:
    """The stack of the model `name` below a head that is new, even where the weights of the old one would fit."""
    given = pretrained_config(name)
    config = type(given).from_dict(merged(given.to_dict(), fields))
    own_labels = {"id2label": given.id2label, "label2id": given.label2id}  # its weights have the shapes of these
    own, _ = load_with_new_head(auto_model, name, type(config).from_dict({**config.to_dict(), **own_labels}))
    model = auto_model.from_config(config).to(own.dtype)
    model.base_model.load_state_dict(own.base_model.state_dict())
    return model


def merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of a configuration, updated with `overrides`; `encoder` and `decoder` are updated field by field."""
    nested = {name: merged(fields[name], value) for name, value in overrides.items() if name in ("encoder", "decoder")}
    labels = ("id2label", "label2id") if "num_labels" in overrides else ()  # those of the checkpoint
    return {**{name: value for name, value in fields.items() if name not in labels}, **overrides, **nested}


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
    encoder, decoder = _encoder(encoder_name, tokenizer), None
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


def _encoder(name: str, tokenizer: PreTrainedTokenizerBase) -> RoFormerLiteModel:
    config = _stack_config("encoder_name_or_path", name)
    if config.is_decoder:
        raise InputError(f"--encoder_name_or_path {name}: it is causal; give it as --decoder_name_or_path")
    check_vocabulary(tokenizer, config, name)
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
