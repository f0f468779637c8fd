"""Models and tokenizers that were trained before: of this package, of transformers, or converted on the way."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import (
    CONFIG_MAPPING,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig

from ..conversion import CONVERTERS, convert_for_fine_tuning, converter_of, merged, open_checkpoint
from ..errors import InputError
from ..model.configuration_roformer_lite import RoFormerLiteConfig
from ..model.configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig
from ..saved_files import Checkpoint, find_file, read_object, weight_files
from ..saved_model import check_finite, load_config, load_tokenizer, load_with_new_head, try_tokenizer

if TYPE_CHECKING:
    from .options import TrainOptions

_POOLED = {"classifier_pooling": "cls", "classifier_activation": "tanh"}  # BERT's classifier of sequences


def pretrained_config(name: str) -> PreTrainedConfig:
    """The configuration of a saved model, be it of this package or not.

    Raises:
        InputError: when there is none, a field is wrong, or nothing says which system it comes from.
    """
    path = find_file(name, "config.json")
    fields = {} if path is None else read_object(path)
    converter, model_type = converter_of(fields), fields.get("model_type")
    if converter is not None:
        return load_config(name, converter.config_class)
    if path is not None and not (isinstance(model_type, str) and model_type in CONFIG_MAPPING):
        raise InputError(
            f"{path}: model_type={model_type!r} does not tell which system the weights come from; convert them with "
            f"`roformer-lite convert {name} OUT --from SYSTEM`, SYSTEM being one of {', '.join(CONVERTERS)}, and give "
            "OUT here"
        )
    return load_config(name)


def pretrained_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or of a repository on the Hub.

    Raises:
        InputError: when there is none, or it cannot encode a batch.
    """
    path = find_file(name, "config.json", "tokenizer")
    converter = None if path is None else converter_of(read_object(path))
    tokenizer = load_tokenizer(name) if converter is None else load_tokenizer(name, converter.tokenizer_class)
    if tokenizer is None:
        raise InputError(f"no tokenizer can be loaded from {name}: it has none")
    try_tokenizer(tokenizer, name)
    return tokenizer


def pretrained_for_task(options: "TrainOptions", tokens: int, fields: Mapping[str, Any]) -> PreTrainedModel:
    """The model of `--model_name_or_path`, with its own head if that fits the task and the labels of the training
    data, with a new one otherwise.

    Args:
        options: Of the command; the task knows the labels.
        tokens: Size of the tokenizer, which the vocabulary of the model must hold.
        fields: Fields of the configuration that shall not be the given model's.
    """
    name, task = options.model.model_name_or_path, options.task
    given = pretrained_config(name)
    keeps_head = task.take_over_labels(given)  # before `config_fields`, which gives the labels in their order
    fields = {**task.config_fields(), **fields}
    check_vocabulary(name, given, tokens)
    if keeps_head:
        model, new = load_pretrained(task.auto_model, name, fields)
        message = f"the model gets a new head for this task: {', '.join(new)}" if new else ""
    else:
        model, new = with_new_head(task.auto_model, name, fields), ["the head"]
        message = f"{task.why_new_head(given)}; the training starts with a new head"
    task.has_new_head = bool(new)
    if message and options.training.should_save:
        print(f"{name}: {message}", file=sys.stderr)
    return model


def check_vocabulary(name: str, config: PreTrainedConfig, tokens: int) -> None:
    """Refuse a tokenizer with more tokens than a model has.

    Raises:
        InputError: saying how many each has.
    """
    if tokens > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokens} tokens, but {name} a vocabulary of {config.vocab_size}; give the tokenizer "
            "that the model was trained with"
        )


def load_pretrained(
    auto_model: type, name: str, fields: Mapping[str, Any], keep_head: bool = True
) -> tuple[PreTrainedModel, list[str]]:
    """A model of the head `auto_model` with the weights at `name`, converted if they are another system's.

    Args:
        auto_model: The Auto class of the head.
        name: Directory or repository on the Hub, with this head, another or none.
        fields: Fields of the configuration that shall not be the saved one's.
        keep_head: Whether to use what a checkpoint of another system has of this head.

    Returns:
        The model, and the names of the tensors that are new.

    Raises:
        InputError: when a file is missing or wrong, or the stack does not fit `fields`.
    """
    given = pretrained_config(name)
    converter = converter_of(given.to_dict())
    if converter is None:
        config = type(given).from_dict(merged(given.to_dict(), fields))
        return load_with_new_head(auto_model, name, config)
    config_class = RoFormerLiteSeq2SeqConfig if given.is_encoder_decoder else RoFormerLiteConfig
    model_class = config_class.auto_classes().get(auto_model.__name__)
    if model_class is None:
        fitting = "--model_name_or_path of train seq2seq" if given.is_encoder_decoder else "--encoder_name_or_path"
        kind = "an encoder–decoder" if given.is_encoder_decoder else "a single stack"
        raise InputError(f"{name}: {given.model_type} is {kind}; give it as {fitting}")
    state_dict, source_config = open_checkpoint(name)
    try:
        model, new = convert_for_fine_tuning(converter, state_dict, source_config, model_class, fields, keep_head)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    check_finite(model, name)
    return model, new


def with_new_head(auto_model: type, name: str, fields: Mapping[str, Any]) -> PreTrainedModel:
    """The stack of the model `name` below a head that is new, even where the weights of the old one would fit.

    BERT's pooler, which a stack of this package has after a conversion, belongs to the stack: it becomes the dense
    layer of a classifier of sequences, unless `fields` ask for another pooling or activation.
    """
    given = pretrained_config(name)
    if converter_of(given.to_dict()) is not None:
        return load_pretrained(auto_model, name, fields, keep_head=False)[0]
    has_pooler = auto_model is AutoModelForSequenceClassification and _is_stack_with_pooler(given)
    config = type(given).from_dict(merged(given.to_dict(), {**(_POOLED if has_pooler else {}), **fields}))
    own_labels = {"id2label": given.id2label, "label2id": given.label2id}  # its weights have the shapes of these
    own, _ = load_with_new_head(auto_model, name, type(config).from_dict({**config.to_dict(), **own_labels}))
    model = auto_model.from_config(config).to(own.dtype)
    model.base_model.load_state_dict(own.base_model.state_dict())
    if has_pooler and all(getattr(config, field) == value for field, value in _POOLED.items()):
        weights = Checkpoint(weight_files(name))
        model.classifier.dense.load_state_dict({part: weights[f"pooler.dense.{part}"] for part in ("weight", "bias")})
    return model


def _is_stack_with_pooler(config: PreTrainedConfig) -> bool:
    is_stack = isinstance(config, RoFormerLiteConfig) and config.architectures == ["RoFormerLiteModel"]
    return is_stack and config.add_pooling_layer
