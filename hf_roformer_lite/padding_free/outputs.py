"""What a training output of a language model has in place of logits that were not computed."""

from typing import Any

MESSAGE = (
    "There are no logits: in training, a language model computes them at labelled tokens only, for "
    "its loss. To get all logits, call padding_free(model, skip_logits=False), or set "
    "skip_logits=False in the call or the configuration of a RoFormerLite model."
)


class SkippedLogits(tuple):
    """Takes the place of the logits in an output. Any use of it raises an error that says why there
    are none.

    It is an empty tuple, because `DataParallel`, DDP, FSDP and accelerate go through all tuples in
    an output to find tensors.
    """

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(MESSAGE)

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(MESSAGE)

    def _refuse(self, *args: Any) -> Any:
        raise TypeError(MESSAGE)

    __getitem__ = __len__ = __array__ = __eq__ = __ne__ = _refuse
    __add__ = __mul__ = __rmul__ = _refuse
