"""The stock trainers with a token budget for batches, averaged weights and label smoothing in the
model.

Everything else, above all the training loop, is transformers' own.
"""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader, Sampler
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from hf_roformer_lite.batches import TokenBudgetBatchSampler, with_batches
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLitePreTrainedModel

from ..errors import InputError
from ..options.common import TrainingOptions
from .callbacks import (
    BestCheckpoint,
    DivergenceGuard,
    SeededCollator,
    TrainingClock,
    WeightAveraging,
)
from .muon import MUON, with_muon


class RoFormerLiteTrainer(Trainer):
    """The `Trainer` with `TrainingOptions`. Together with a subclass of `Trainer`, such as
    `Seq2SeqTrainer`, it is a base class of the trainers of other tasks.

    Args:
        options: The training options of the run.
        lengths: Number of tokens of each training example, for `max_tokens_per_batch`.
    """

    args_class: type[TrainingArguments] = TrainingArguments
    # The Trainer declares these as optional, or as one of many types.
    args: Any
    model: Any
    processing_class: Any

    def __init__(
        self,
        *args: Any,
        options: TrainingOptions,
        lengths: Sequence[int],
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        # The Trainer assumes of each model whose `forward` has `**kwargs` that it divides its loss
        # by the number of labels of all accumulated batches and processes. Among the stock models,
        # only causal ones do it. The others take the mean of their own batch, and the Trainer has
        # to average these means, instead of adding them.
        is_own = isinstance(self.model, RoFormerLitePreTrainedModel)
        is_causal = type(self.model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        if not (is_own or is_causal):
            self.model_accepts_loss_kwargs = False
        self.options = options
        self.lengths = lengths
        if self.is_fsdp_enabled:
            raise InputError(
                "this command needs whole weights, which FSDP shards; leave FSDP out (several "
                "processes then use DDP), or train with transformers' Trainer"
            )
        # Our language model heads smooth labels themselves, only at the labelled positions. The
        # smoother of the Trainer needs all logits.
        self.label_smoothing = 0.0
        model_smooths = "smoothing" in signature(type(self.model).forward).parameters
        if self.label_smoother is not None and model_smooths:
            self.label_smoothing = self.args.label_smoothing_factor
            self.label_smoother = None
        # The lines of the clock replace these two, also in a notebook.
        self.remove_callback(PrinterCallback)
        self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
        self.add_callback(BestCheckpoint())
        self.averaging = WeightAveraging(options.ema_decay or 0.0)
        if options.ema_decay:
            self.add_callback(self.averaging)
        self.add_callback(TrainingClock())
        if options.early_stopping_patience and self.args.load_best_model_at_end:
            self.add_callback(EarlyStoppingCallback(options.early_stopping_patience))
        # The guard comes last because the others may request an evaluation or a checkpoint.
        self.add_callback(DivergenceGuard())

    @property
    def sampling_seed(self) -> int:
        """The seed that determines the order of the training data."""
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    def get_train_dataloader(self) -> DataLoader:
        given = self.data_collator
        if hasattr(given, "generator"):
            # Only training uses this collator. An earlier loader may have added another one.
            self.remove_callback(SeededCollator)
            self.data_collator = SeededCollator(given, self.sampling_seed)
            self.add_callback(self.data_collator)
        try:
            loader = super().get_train_dataloader()
        finally:
            self.data_collator = given
        sampler = self.make_batch_sampler()
        return loader if sampler is None else with_batches(loader, sampler)

    def make_batch_sampler(self) -> Sampler[list[int]] | None:
        """The sampler of the training batches of this process, or None for that of the Trainer."""
        if not self.options.max_tokens_per_batch:
            return None
        return TokenBudgetBatchSampler(
            self.lengths,
            max_tokens=self.options.max_tokens_per_batch,
            seed=self.sampling_seed,
            rank=self.args.process_index,
            world_size=self.args.world_size,
        )

    def _get_eval_sampler(self, eval_dataset: Dataset) -> None:
        """Keep the order of the rows, because predictions are compared with references by position.
        With `group_by_length`, the Trainer would sort them."""
        return None

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        made: Any = super().create_optimizer(model)
        if is_new and self.options.optim == MUON:
            made = self.optimizer = with_muon(made, model or self.model)
        return made

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        # Some schedules cannot be made for a training without steps.
        return super().create_scheduler(max(num_training_steps, 1), optimizer)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if model.training:
            inputs = dict(inputs)
            if self.label_smoothing:
                inputs["smoothing"] = self.label_smoothing
            if self.options.word_dropout:
                inputs["input_ids"] = self._drop_words(inputs["input_ids"])
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _drop_words(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Replace some of the tokens `(B, L)`, but no special ones, by the mask, unknown or padding
        token, whichever exists first (Iyyer et al. 2015, ACL)."""
        tokenizer = self.processing_class
        candidates = (tokenizer.mask_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id)
        replacement = next(number for number in candidates if number is not None)
        special = torch.tensor(tokenizer.all_special_ids, device=input_ids.device)
        drawn = torch.rand(input_ids.shape, device=input_ids.device)
        dropped = (drawn < (self.options.word_dropout or 0.0)) & ~torch.isin(input_ids, special)
        return input_ids.masked_fill(dropped, replacement)

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        # Some models return more after their logits, such as the hidden states that the
        # configuration asks for.
        return loss, logits[0] if isinstance(logits, tuple) else logits, labels

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model together with the averaged weights. Both are written before the file that
        marks a checkpoint as complete."""
        super().save_model(output_dir, _internal_call)
        is_checkpoint = _internal_call and self.args.should_save
        if output_dir is not None and is_checkpoint and self.options.ema_decay:
            self.averaging.save(Path(output_dir))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        # Random choices such as masks are the same in each evaluation, so that checkpoints are
        # comparable, and the random state of the training is not affected.
        with torch.random.fork_rng(devices), self.averaging.in_place_of(self.model):
            torch.manual_seed(self.args.seed)
            return super().evaluate(*args, **kwargs)


class RoFormerLiteSeq2SeqTrainer(RoFormerLiteTrainer, Seq2SeqTrainer):
    """`Seq2SeqTrainer` with `TrainingOptions`."""

    args_class = Seq2SeqTrainingArguments
