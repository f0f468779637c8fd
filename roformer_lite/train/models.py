"""The model that a training starts from: a new one, one that was trained before, in its own class,
or a pair whose encoder was."""

import difflib
import json
import sys
from collections.abc import Mapping
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.model.configuration_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteSeq2SeqConfig,
)
from hf_roformer_lite.model.modeling_roformer_lite_seq2seq import (
    RoFormerLiteForConditionalGeneration,
)
from hf_roformer_lite.padding_free import padding_free

from ..errors import InputError
from ..recipes.base import Recipe
from ..run import Run
from ..saved_model import check_vocabulary, load_config, load_with_new_head, most_positions, reason


def make_model(
    run: Run,
    recipe: Recipe,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    given: Mapping[str, PreTrainedConfig],
) -> PreTrainedModel:
    """The model given with a head for the recipe, a pair with the encoder given, or a new one of the
    size asked for.

    Args:
        run, recipe, args: Of the training; the task knows the labels.
        tokenizer: The vocabulary of a model that is given must hold all of its tokens.
        given: The configurations of the models that the training starts from, by their names.

    Raises:
        InputError: when the fields of the configuration do not fit together, or no model can be
            loaded.
    """
    name = run.model.model_name_or_path
    overrides = parse_overrides(
        run.model.config, type(given[name]) if name else recipe.config_class
    )
    try:
        if name:
            model = pretrained_for_task(name, given[name], recipe, args, tokenizer, overrides)
        elif given:
            name, config = next(iter(given.items()))
            model = encoder_of_a_pair(name, config, run.model.size, args, tokenizer, overrides)
        else:
            fields = {} if run.model.size else recipe.new_model
            tokens = _token_ids(tokenizer, recipe.config_class) | {"vocab_size": len(tokenizer)}
            fields = {**tokens, **fields, **recipe.config_fields(), **overrides}
            config = recipe.config_class.from_preset(run.model.size or "mini", **fields)
            model = recipe.auto_model.from_config(config)
        _check_positions(run, recipe, model)
        return model
    except InputError:
        raise  # it says already what is wrong, and in which file
    # Runtime: too large for the memory
    except (StrictDataclassError, ValueError, OSError, RuntimeError) as error:
        raise InputError(
            f"no model can be made with these options (--size, --config): {reason(error)}"
        ) from error


def _token_ids(
    tokenizer: PreTrainedTokenizerBase, config_class: type[PreTrainedConfig]
) -> dict[str, int | None]:
    first = tokenizer.cls_token_id
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": first,
        "eos_token_id": tokenizer.sep_token_id,
    }
    is_pair = "decoder_start_token_id" in config_class.__dataclass_fields__
    return ids | ({"decoder_start_token_id": first} if is_pair else {})


def _check_positions(run: Run, recipe: Recipe, model: PreTrainedModel) -> None:
    """Refuse texts longer than a table of learned positions, before the first long one stops the
    training. A length that was not given becomes that of the table."""
    most = most_positions(model)
    lengths = {
        name: getattr(recipe.options, name, 0)
        for name in ("max_length", "max_source_length", "max_target_length")
    }
    for name, length in {
        **lengths,
        "block_size": getattr(recipe.options, "longest_block", 0),
    }.items():
        if most is not None and length > most:
            if getattr(run.data, name) != type(run.data).__dataclass_fields__[name].default:
                raise InputError(
                    f"--{name} {length} is more than the model has positions for; give --{name} {most} or less"
                )
            setattr(recipe.options, name, most)
            recipe.tokenizer.model_max_length = recipe.max_length


def parse_overrides(assignments: list[str], config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """`["hidden_dropout=0.3", "decoder.num_hidden_layers=3"]` as arguments of
    `config_class.from_preset`.

    Values are JSON (`0.3`, `true`, `null`, `["full_attention"]`); anything else is taken as text.

    Raises:
        InputError: for an assignment without `=`, and for a field that `config_class` does not
            have.
    """
    own = (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig)
    stack_fields = (
        set(RoFormerLiteConfig.__dataclass_fields__) if issubclass(config_class, own) else set()
    )
    sides = [side for side in ("encoder", "decoder") if side in config_class.__dataclass_fields__]
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        side, dot, own = name.rpartition(".")
        valid = (
            stack_fields
            if dot
            else stack_fields | set(config_class.__dataclass_fields__) - set(sides)
        )
        if not equals or (dot and side not in sides) or own not in valid:
            close = difflib.get_close_matches(own, valid, n=3)
            hint = f"; did you mean {' or '.join(close)}?" if close and own not in valid else ""
            raise InputError(
                f"--config {assignment}: name=value with a field of {config_class.__name__} is needed{hint}"
            )
        if own == "vocab_size":
            raise InputError(
                f"--config {assignment}: the tokenizer determines it; use --vocab_size"
            )
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
    try:
        return load_config(name)
    except InputError as error:
        if "recogniz" not in str(error):  # transformers' word for model types
            raise
        raise InputError(
            f"{error}; convert a model of another system with `roformer-lite convert {name} OUT --from SYSTEM`, whose "
            "--help lists the systems, and give OUT here"
        ) from error


def pretrained_for_task(
    name: str,
    given: PreTrainedConfig,
    recipe: Recipe,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    fields: Mapping[str, Any],
) -> PreTrainedModel:
    """The model of `--model_name_or_path`, with its own head if that fits the task and the labels
    of the training data, with a new one otherwise.

    Args:
        name, given: The model and its configuration.
        recipe, args: Of the training; the task knows the labels.
        tokenizer: The vocabulary of the model must hold all of its tokens.
        fields: Fields of the configuration that shall not be the given model's.

    Raises:
        InputError: when a file is missing or wrong, or the model does not fit the options.
    """
    if given.is_encoder_decoder != (recipe.name == "seq2seq"):
        kind, fitting = ("a single stack", "--encoder_name_or_path")
        if given.is_encoder_decoder:
            kind, fitting = "an encoder–decoder", "--model_name_or_path of train seq2seq"
        raise InputError(f"{name}: {given.model_type} is {kind}; give it as {fitting}")
    is_own = isinstance(given, (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig))
    if getattr(recipe.options, "text_scores", False) and not is_own:
        raise InputError(
            f"--text_scores: a model of type {given.model_type} has no place for them; leave the option out, or start "
            f"from what `roformer-lite convert {name} OUT --from auto` writes"
        )
    # before `config_fields`, which gives the labels in their order
    why_new_head = recipe.why_new_head(given)
    of_task = {
        field: value for field, value in recipe.config_fields().items() if hasattr(given, field)
    }
    config = type(given).from_dict(merged(given.to_dict(), {**of_task, **fields}))
    # its weights have the shapes of these
    own_labels = {"id2label": given.id2label, "label2id": given.label2id}
    own_config = (
        type(given).from_dict({**config.to_dict(), **own_labels}) if why_new_head else config
    )
    check_vocabulary(tokenizer, given, name)
    model, new = load_with_new_head(recipe.auto_model, name, own_config)
    message = f"the model gets a new head for this task: {', '.join(new)}" if new else ""
    if why_new_head:  # even where the weights of the old one would fit
        stack, new = model.base_model.state_dict(), ["the head"]
        model = recipe.auto_model.from_config(config).to(model.dtype)
        model.base_model.load_state_dict(stack)
        message = f"{why_new_head}; the training starts with a new head"
    recipe.has_new_head, recipe.has_own_class = bool(new), is_own
    if getattr(recipe.options, "text_scores", False):
        # others are fitted beside the encoder, which is trained and weighed without these
        model.add_text_scores(None)
    try:
        padding_free(model)
    except ValueError as error:
        if getattr(recipe.options, "packing", False):
            raise InputError(
                f"--packing: documents of one row would see each other, as {error}"
            ) from error
        message = f"{message}; {error} Its padding is computed".removeprefix("; ")
    if message and args.should_save:
        print(f"{name}: {message}", file=sys.stderr)
    return model


def merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of a configuration, updated with `overrides`; `encoder` and `decoder` are updated
    field by field."""
    nested = {
        name: merged(fields[name], value)
        for name, value in overrides.items()
        if name in ("encoder", "decoder")
    }
    # those of the checkpoint
    labels = ("id2label", "label2id") if "num_labels" in overrides else ()
    return {
        **{name: value for name, value in fields.items() if name not in labels},
        **overrides,
        **nested,
    }


def encoder_of_a_pair(
    name: str,
    given: PreTrainedConfig,
    size: str | None,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    overrides: dict[str, Any],
) -> RoFormerLiteForConditionalGeneration:
    """The encoder of `--encoder_name_or_path` below a new decoder, which reads and predicts tokens
    by the encoder's table, the only part of it that has been trained before.

    Args:
        name, given: The encoder and its configuration.
        size: Of the decoder.
        args: Of the training.
        tokenizer: The encoder's.
        overrides: Fields of the configuration to change; those of the encoder may change no shape.

    Raises:
        InputError: when the model has another architecture, or a field would change a shape.
    """
    if not isinstance(given, RoFormerLiteConfig):
        raise InputError(
            f"--encoder_name_or_path {name}: {given.model_type} is no stack of this package; give what `roformer-lite "
            f"convert {name} OUT --from auto` writes"
        )
    if given.is_decoder:
        raise InputError(f"--encoder_name_or_path {name}: it is a causal model; give an encoder")
    fields = RoFormerLiteSeq2SeqConfig.__dataclass_fields__
    # those without a side
    of_both = {key: value for key, value in overrides.items() if key not in fields}
    of_sides = {side: {**of_both, **overrides.get(side, {})} for side in ("encoder", "decoder")}
    of_pair = {
        key: value for key, value in overrides.items() if key in fields and key not in of_sides
    }
    check_vocabulary(tokenizer, given, name)
    config = {**given.to_dict(), "add_pooling_layer": False}
    encoder, _ = load_with_new_head(AutoModel, name, RoFormerLiteConfig.from_dict(config))
    same_table = {
        "vocab_size": encoder.config.vocab_size,
        "embedding_size": encoder.config.embedding_size,
    }
    config = RoFormerLiteSeq2SeqConfig(
        encoder={**encoder.config.to_dict(), **of_sides["encoder"]},
        decoder=RoFormerLiteConfig.from_preset(
            size or "mini", **{**same_table, **of_sides["decoder"]}
        ),
        **{"share_embeddings": True, **_token_ids(tokenizer, RoFormerLiteSeq2SeqConfig), **of_pair},
    )
    model = RoFormerLiteForConditionalGeneration(config)
    try:
        model.model.encoder.load_state_dict(encoder.state_dict())
        table = encoder.get_input_embeddings().state_dict()
        model.model.decoder.get_input_embeddings().load_state_dict(table)
    except RuntimeError as error:
        raise InputError(
            f"{reason(error)}; give only --config fields that change no shape of the encoder, such as "
            "encoder.hidden_dropout=0.3"
        ) from error
    model.tie_weights()
    if args.should_save:
        print(f"{name}: the decoder is new, but for its table of tokens", file=sys.stderr)
    return model
