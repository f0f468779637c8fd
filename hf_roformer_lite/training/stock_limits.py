"""Limits of the numbers among transformers' `TrainingArguments`, which accepts some that no training can have."""

from typing import Any

from ..errors import check_number

# The arguments of `check_number` for each field.
_LIMITS: dict[str, dict[str, float]] = {
    "label_smoothing_factor": {"at_least": 0, "below": 1},
    "gradient_accumulation_steps": {"at_least": 1},
    "max_grad_norm": {"at_least": 0},
    "adam_beta1": {"at_least": 0, "below": 1},
    "adam_beta2": {"at_least": 0, "below": 1},
    "adam_epsilon": {"above": 0},
    "data_seed": {"at_least": 0, "at_most": 2**32 - 1},
    "eval_steps": {"above": 0},
    "save_steps": {"above": 0},
    "logging_steps": {"above": 0},
    "eval_delay": {"at_least": 0},
    "eval_accumulation_steps": {"at_least": 1},
    "dataloader_num_workers": {"at_least": 0},
    "dataloader_prefetch_factor": {"at_least": 1},
    "neftune_noise_alpha": {"at_least": 0},
    "generation_num_beams": {"at_least": 1},
    "generation_max_length": {"at_least": 2},  # the start token, and one more
}


def check_stock_numbers(arguments: Any) -> None:
    """Refuse impossible numbers in `TrainingArguments`, or in a dataclass with fields of the same names.

    Raises:
        InputError: naming option, value and limits.
    """
    for name, limits in _LIMITS.items():
        check_number(name, getattr(arguments, name, None), **limits)
