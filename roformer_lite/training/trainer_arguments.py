"""transformers' training arguments with the fields and defaults of this package."""

import os
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments
from transformers.training_args import OptimizerNames

from ..errors import InputError
from .arguments import OwnTrainingArguments
from .devices import is_by_deepspeed
from .metrics import LOWER_IS_BETTER
from .muon import MUON
from .publishing_arguments import HubArguments
from .stock_limits import check_stock_values

_FEWEST_EPOCHS, _MOST_EPOCHS, _EXAMPLES = 3, 20, 300_000


@dataclass
class RoFormerLiteTrainingArguments(HubArguments, OwnTrainingArguments, TrainingArguments):
    """transformers' `TrainingArguments` with a few more fields, and defaults for small models trained from scratch."""

    takes_one_device: ClassVar[bool] = False  # not all that a process sees; may be set on an object

    def __post_init__(self):
        check_stock_values(self)
        OwnTrainingArguments.__post_init__(self)
        self.epochs_follow_data = self.num_train_epochs is None
        if self.epochs_follow_data:
            self.num_train_epochs = float(_MOST_EPOCHS)  # until the data are known
        self.has_metric = self.metric_for_best_model is not None  # transformers fills it in
        if self.has_metric and self.greater_is_better is None:
            name = self.metric_for_best_model.removeprefix("eval_")
            self.greater_is_better = not (name.endswith("loss") or name in LOWER_IS_BETTER)
        if self.load_best_model_at_end is None:
            together = self.save_strategy in (self.eval_strategy, "best")
            if self.eval_strategy == "steps" == self.save_strategy:
                together = self.save_steps % (self.eval_steps or self.logging_steps) == 0
            self.load_best_model_at_end = self.eval_strategy != "no" and together
        if (
            self.greater_is_better is None
            and (self.metric_for_best_model or "").removeprefix("eval_") in LOWER_IS_BETTER
        ):
            self.greater_is_better = False  # transformers takes the largest value of all but losses for the best
        if not torch.cuda.is_available():
            self.dataloader_pin_memory = False  # pinning is useless there, and torch warns about it
        if self.bf16 and not torch.accelerator.is_available():
            self.use_cpu = True  # which transformers wants to be told
        self.cpu_follows_launcher = not self.use_cpu and self._is_launched_on_a_cpu()
        if self.cpu_follows_launcher:
            self.use_cpu = True  # else accelerate starts no process group, and each process believes that it is alone
        optim, known = self.optim, [MUON, *(name.value for name in OptimizerNames)]
        if optim not in known:
            raise InputError(f"--optim {optim} must be one of {', '.join(known)}")
        if optim == MUON:  # transformers' list of optimizers does not have it
            self.optim = OptimizerNames.ADAMW_TORCH_FUSED
        super(OwnTrainingArguments, self).__post_init__()  # of transformers, or of what extends it
        if optim == MUON:
            self.optim = optim
        is_given = self.bf16 is not None or self.mixed_precision != "no" or self.bf16_full_eval
        self.may_choose_type = not (is_given or self.torch_compile or self.shard_weights)

    @property
    def n_gpu(self) -> int:
        return min(1, super().n_gpu) if self.takes_one_device else super().n_gpu

    def _is_launched_on_a_cpu(self) -> bool:
        """Whether this is one of several processes without an accelerator. DeepSpeed starts its own group."""
        return "LOCAL_RANK" in os.environ and not (is_by_deepspeed(self) or torch.accelerator.is_available())

    def take_type(self, bf16: bool) -> None:
        """Train in bfloat16, or in float32, where the user has left it open (`may_choose_type`)."""
        self.bf16, self.mixed_precision = bf16, "bf16" if bf16 else "no"

    def follow_data(self, examples: int) -> None:
        """Take as many epochs as show 300,000 training examples, from 3 to 20, where no number was given.

        Early stopping ends a training that learns no more. What these bounds prevent is a schedule of days.
        """
        if self.epochs_follow_data:
            self.num_train_epochs = float(min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, _EXAMPLES // max(1, examples))))


@dataclass
class RoFormerLiteSeq2SeqTrainingArguments(RoFormerLiteTrainingArguments, Seq2SeqTrainingArguments):
    """The same for seq2seq. `predict_with_generate` asks for generated text at every evaluation; the final evaluation
    always generates."""

    def __post_init__(self):
        super().__post_init__()
        if self.metric_for_best_model and not self.metric_for_best_model.endswith("loss"):
            self.predict_with_generate = True  # BLEU, chrF and exact match need the generated text
