"""Limits of the values of transformers' `TrainingArguments`, which accepts some that no training can have.

Nothing here imports torch, so that mistakes are answered at once.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import MOST_BEAMS, InputError, check_file, check_number

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
    "dataloader_num_workers": {"at_least": 0, "at_most": 1024},
    "dataloader_prefetch_factor": {"at_least": 1},
    "neftune_noise_alpha": {"at_least": 0},
    "generation_num_beams": {"at_least": 1, "at_most": MOST_BEAMS},
    "generation_max_length": {"at_least": 2},  # the start token, and one more
}
# Options that take a JSON object; those of the second tuple also a file with one.
_OBJECTS = ("lr_scheduler_kwargs", "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
_OBJECTS_OR_FILES = ("accelerator_config", "fsdp_config", "deepspeed")


def check_stock_values(arguments: Any) -> None:
    """Refuse impossible values in `TrainingArguments`, or in a dataclass with fields of the same names.

    Raises:
        InputError: naming option, value and what would be right.
    """
    for option in fields(arguments):
        value = getattr(arguments, option.name, None)
        if isinstance(value, int | float):
            check_number(option.name, value, **_LIMITS.get(option.name, {}))
    for name in (*_OBJECTS, *_OBJECTS_OR_FILES):
        value = getattr(arguments, name, None)
        if isinstance(value, str):  # otherwise parsed already, or not given
            _check_object(name, value)


def _check_object(option: str, value: str) -> None:
    content = value
    if option in _OBJECTS_OR_FILES and not value.startswith("{"):
        check_file(option, value)
        content = Path(value).read_text("utf-8", errors="replace")
    try:
        is_object = isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        wanted = "a JSON object" + (" or a file with one" if option in _OBJECTS_OR_FILES else "")
        raise InputError(f"--{option} {value}: {wanted} is needed, such as " + '{"name": 1}')
