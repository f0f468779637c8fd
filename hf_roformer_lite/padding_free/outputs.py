"""Training outputs of language models whose logits were not computed."""

from functools import lru_cache, partial
from typing import Any, TypeVar

import torch
from transformers.utils import ModelOutput

OutputT = TypeVar("OutputT", bound=ModelOutput)

MESSAGE = (
    "There are no logits: in training, a language model computes them at labelled tokens only, for "
    "its loss. To get all logits, call padding_free(model, skip_logits=False), or set "
    "skip_logits=False in the call or the configuration of a RoFormerLite model."
)


class SkippedLogits:
    """Replaces the logits of an output that has none. Any use of it raises an error that says why.

    Reading the field raises no error: DDP and FSDP2 look for tensors in all fields of an output.
    """

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(MESSAGE)

    def __getitem__(self, key: Any) -> Any:
        raise TypeError(MESSAGE)

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(MESSAGE)


def without_logits(output: OutputT) -> OutputT:
    """The same output without logits. Using `logits` raises an error that says why there are none,
    and `output.get("logits")` is None."""
    if torch.compiler.is_compiling():
        return output
    stock_class: Any = type(output)
    output_class = class_without_logits(stock_class)
    fields = {name: value for name, value in output.items() if name != "logits"}
    return output_class(**fields)


@lru_cache
def class_without_logits(stock_class: Any) -> Any:
    """A subclass of an output class. It needs a different name: transformers registers each output
    class as a pytree node under its module and name, by which exported graphs find it."""

    def post_init(self: ModelOutput) -> None:
        stock_class.__post_init__(self)
        vars(self).pop("logits", None)

    def getitem(self: ModelOutput, key: Any) -> Any:
        if key == "logits":
            raise KeyError(MESSAGE)
        if not isinstance(key, str) and key != 0:  # Index 0 is the loss; the logits come after it.
            raise IndexError(MESSAGE)
        return stock_class.__getitem__(self, key)

    def reduce(self: ModelOutput) -> tuple[Any, ...]:
        return partial(stock_class, **self), ()

    fields = {
        "__module__": stock_class.__module__,
        "__post_init__": post_init,
        "__getitem__": getitem,
        "__reduce__": reduce,
        "logits": SkippedLogits(),
    }
    return type(f"{stock_class.__name__}WithoutLogits", (stock_class,), fields)
