"""The initial model of a training: a new one, or a pretrained one in its own class."""

import sys
from collections.abc import Mapping
from typing import Any

from datasets import DatasetDict
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from hf_roformer_lite.conversion.checkpoint_files import reason
from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.model.hub import AUTO_CLASSES

from ..errors import InputError, did_you_mean
from ..options.run import Run
from ..recipes.base import Recipe, Start
from ..saved.saved_model import (
    check_vocabulary,
    leave_out_segments,
    load_with_new_head,
    max_positions,
    set_input_names,
    skip_padding,
)


def make_start(
    run: Run,
    recipe: Recipe,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    given: PreTrainedConfig | None,
    rows: DatasetDict,
) -> Start:
    """Make a pretrained model with a head for the recipe, or a new model of the requested size, and
    encode the data for it.

    Args:
        run, recipe, args: The run with its defaults filled in, its task, which has found the
            labels, and its arguments.
        tokenizer: The tokenizer. A pretrained model must have embeddings of all its tokens.
        given: The configuration of the pretrained model, if there is one.
        rows: The data.

    Raises:
        InputError: if the fields of the configuration are inconsistent, or a model cannot be
            loaded.
    """
    name = run.model.model_name_or_path
    config_class = recipe.config_class if given is None else type(given)
    overrides = run.model.config
    check_overrides(overrides, config_class)
    has_new_head = False
    try:
        if name is not None and given is not None:
            # The order of the labels determines whether the head fits.
            recipe = recipe.in_order_of(given)
            model, has_new_head = pretrained_for_task(
                name, given, recipe, args, tokenizer, overrides
            )
        else:
            model = new_model(run.model.size, recipe, tokenizer, overrides)
            if recipe.takes_pairs and model.config.type_vocab_size > 1:
                # Our tokenizers return the segments of a pair only if they are asked.
                names = [*tokenizer.model_input_names, "token_type_ids"]
                set_input_names(tokenizer, list(dict.fromkeys(names)))
    except InputError:
        raise
    # A TypeError names an unknown field of one stack, and a RuntimeError is raised if the model is
    # too large for the memory.
    except (StrictDataclassError, TypeError, ValueError, OSError, RuntimeError) as error:
        raise InputError(
            f"no model can be made with these options (--size, --config): {reason(error)}"
        ) from error
    positions = max_positions(model)
    if positions is not None:
        recipe = recipe.limited_to(positions, run.given)
    tokenizer.model_max_length = recipe.max_length
    leave_out_segments(tokenizer, model.config)
    encoded = {
        split: recipe.encode(part, tokenizer, training=split == "train")
        for split, part in rows.items()
    }
    start = Start(
        run=run,
        args=args,
        rows=rows,
        encoded=DatasetDict(encoded),
        recipe=recipe,
        model=model,
        tokenizer=tokenizer,
        has_new_head=has_new_head,
        has_own_class=model.config.model_type in AUTO_CLASSES,
        trained=model,
    )
    return recipe.prepared(start)


def new_model(
    size: str | None,
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    overrides: Mapping[str, Any],
) -> PreTrainedModel:
    """A model with random weights. If no size is chosen, the task may choose some fields."""
    fields = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "vocab_size": len(tokenizer),
    }
    if "decoder_start_token_id" in recipe.config_class.__dataclass_fields__:
        fields["decoder_start_token_id"] = tokenizer.cls_token_id
    if not size:
        fields |= recipe.new_model
    fields |= {**recipe.config_fields(), **overrides}
    config = recipe.config_class.from_preset(size or "mini", **fields)
    return recipe.auto_model.from_config(config)


def check_overrides(given: dict[str, Any], config_class: type[PreTrainedConfig]) -> None:
    """Check the names of the fields that `--config` sets.

    Raises:
        InputError: for a field that `config_class` does not have.
    """
    known = set(config_class.__dataclass_fields__)
    if issubclass(config_class, RoFormerLiteSeq2SeqConfig):
        # Other fields are those of both stacks.
        known |= set(RoFormerLiteConfig.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise InputError(
                f"--config {name}: {config_class.__name__} has no such field"
                f"{did_you_mean(name, known)}"
            )
        if name == "vocab_size":
            raise InputError("--config vocab_size: the tokenizer determines it; use --vocab_size")


def pretrained_for_task(
    name: str,
    given: PreTrainedConfig,
    recipe: Recipe,
    args: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    fields: Mapping[str, Any],
) -> tuple[PreTrainedModel, bool]:
    """The model of `--model_name_or_path`, with its own head if that fits the task and the labels
    of the training data, and with a new one otherwise.

    Args:
        name, given: The model and its configuration.
        recipe, args: The task, which has found the labels, and the training arguments.
        tokenizer: The tokenizer. The model must have embeddings of all its tokens.
        fields: Fields of the configuration that override those of the model.

    Returns:
        The model, and whether its head is new.

    Raises:
        InputError: if a file is missing or wrong, or if the model does not fit the options.
    """
    if given.is_encoder_decoder != (recipe.name == "seq2seq"):
        kind = "an encoder–decoder" if given.is_encoder_decoder else "a single stack"
        raise InputError(
            f"--model_name_or_path {name}: {given.model_type} is {kind}; train seq2seq takes "
            "encoder–decoders, and all other tasks take single stacks"
        )
    check_vocabulary(tokenizer, given, name)
    why_new_head = recipe.why_new_head(given)
    # A classifier that the training starts from may have another type of problem.
    of_task = {"problem_type": None, **recipe.config_fields()}
    of_task = {field: value for field, value in of_task.items() if hasattr(given, field)}
    config = type(given).from_dict(merged(given.to_dict(), {**of_task, **fields}))
    saved_config = config
    if why_new_head:
        # The saved weights have the shapes of the given labels, which the task may not allow.
        head = {name: getattr(given, name) for name in ("id2label", "label2id", "problem_type")}
        saved_config = type(given).from_dict({**config.to_dict(), **head})
    model, new = load_with_new_head(recipe.auto_model, name, saved_config)
    messages = []
    if why_new_head:
        # The head is new even if the weights of the old one have the right shapes.
        stack = model.base_model.state_dict()
        model = recipe.auto_model.from_config(config).to(model.dtype)
        model.base_model.load_state_dict(stack)
        messages.append(f"{why_new_head}; the training starts with a new head")
    elif new:
        messages.append(f"the model gets a new head for this task: {', '.join(new)}")
    skip_padding(model)
    if messages and args.should_save:
        # Its directory may be one of the training, with a converted sentence encoder.
        print(f"--model_name_or_path: {'; '.join(messages)}", file=sys.stderr)
    return model, bool(why_new_head or new)


def merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of a configuration, updated with `overrides`; `encoder` and `decoder` are updated
    field by field."""
    found = dict(fields)
    # The code that this names is not saved with the model.
    found.pop("auto_map", None)
    if "num_labels" in overrides:
        # The names belong to a different number of labels.
        found.pop("id2label", None)
        found.pop("label2id", None)
    for name, value in overrides.items():
        if name in ("encoder", "decoder"):
            value = merged(fields[name], value)
        found[name] = value
    return found
