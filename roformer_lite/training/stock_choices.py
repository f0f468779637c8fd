"""The words among transformers' `TrainingArguments` that it looks at only when the training has been prepared."""

import os
from pathlib import Path

import torch
from accelerate.utils import DynamoBackend
from transformers import GenerationConfig, Seq2SeqTrainer, TrainingArguments

from ..errors import InputError
from ..saved_files import reason
from .muon import MUON, muon_arguments
from .resume import require_checkpoint

_DIVIDING = {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"}  # set by `accelerate launch`
_PACKAGES = {"azure_ml": "azureml-sdk", "comet_ml": "comet-ml", "flyte": "flytekit"}  # others are named as the tracker


def check_stock_choices(args: TrainingArguments) -> None:
    """Refuse what the Trainer would refuse after the data are read and the tokenizer is trained.

    Raises:
        InputError: naming option, value and what would be right.
    """
    _check_trackers(args.report_to)
    if args.shard_weights and (args.fsdp or args.deepspeed or not _DIVIDING.isdisjoint(os.environ)):
        raise InputError("--shard_weights divides the model already; leave out the configuration of FSDP or DeepSpeed")
    if args.save_strategy == "best" and not args.metric_for_best_model:
        raise InputError("--save_strategy best needs --metric_for_best_model, such as loss")
    if args.optim_args and not all(part.count("=") == 1 for part in args.optim_args.replace(" ", "").split(",")):
        raise InputError(f"--optim_args {args.optim_args} must be name=value, several separated by commas")
    if args.optim == MUON:
        muon_arguments(args.optim_args)
    if args.resume_from_checkpoint:
        require_checkpoint(args.resume_from_checkpoint)
    _check_generation_config(getattr(args, "generation_config", None))
    backends = [backend.value for backend in DynamoBackend]
    if args.torch_compile_backend is not None and args.torch_compile_backend.upper() not in backends:
        known = ", ".join(map(str.lower, backends))
        raise InputError(f"--torch_compile_backend {args.torch_compile_backend} must be one of {known}")
    if args.torch_compile_mode:
        try:
            torch.compile(check_stock_choices, mode=args.torch_compile_mode)  # which compiles nothing yet
        except RuntimeError as error:
            known = str(error).partition("one of")[2].strip(" :.")
            raise InputError(f"--torch_compile_mode {args.torch_compile_mode} must be one of {known}") from error


def _check_generation_config(given: str | Path | GenerationConfig | None) -> None:
    if given is not None:
        try:
            Seq2SeqTrainer.load_generation_config(given)
        except (OSError, TypeError, ValueError) as error:
            raise InputError(f"--generation_config {given} cannot be loaded: {reason(error)}") from error


def _check_trackers(trackers: list[str] | str | None) -> None:
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    for tracker in [trackers] if isinstance(trackers, str) else trackers or []:
        try:
            for callback in get_reporting_integration_callbacks(tracker):
                callback()  # which looks for the tracker's library
        except (ImportError, RuntimeError, ValueError) as error:
            missing = f"its library is not installed; install it with pip install {_PACKAGES.get(tracker, tracker)}"
            raise InputError(f"--report_to {tracker}: {missing if 'install' in str(error) else error}") from error
