"""The stock trainers with a token budget for batches, a time limit, averaged weights and label
smoothing in the model.

Everything else, the training loop above all, is transformers' own.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset, DatasetDict
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerState,
    TrainingArguments,
)

from ..errors import InputError
from ..options import TrainingOptions
from ..output import is_disk_full
from ..run import Run
from ..saved_model import reason
from .callbacks import (
    BestCheckpoint,
    DivergenceGuard,
    EarlyStopping,
    SeededCollator,
    TrainingClock,
    WeightAveraging,
)
from .muon import MUON, make_muon
from .token_budget import TokenBudgetBatchSampler
from .training_arguments import epochs_for, is_greater_better
from .training_directory import STATE_FILE

if TYPE_CHECKING:
    from ..recipes.base import Recipe


_MEASURED_ROWS = 1000
_TOKENS_OF_A_BATCH = 8192  # of rows with labels, on average: 8 million tokens are 1,000 steps
# The names that torch gives to instructions which multiply matrices of bfloat16: AMX and AVX-512
# of x86 processors, and those of ARM.
_BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")
_MIN_BFLOAT16_STEPS = 200


class RoFormerLiteTrainerMixin:
    """What the package adds to `Trainer` and `Seq2SeqTrainer`.

    Args:
        options: Of the run. Default: none, as where a saved model is evaluated.
        lengths: Number of tokens of each training example, for `max_tokens_per_batch`.
        command_started: When the command began, for the clock. Default: now.
    """

    def __init__(
        self,
        *args: Any,
        options: TrainingOptions | None = None,
        lengths: Sequence[int] = (),
        command_started: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        # a class of options has the defaults
        self.options, self.lengths = options or TrainingOptions, lengths
        self.model.register_load_state_dict_post_hook(_without_tied)
        ema_decay, limit = self.options.ema_decay, self.options.time_limit_minutes
        if self.is_fsdp_enabled:
            for name, is_given in (
                ("ema_decay", ema_decay),
                ("optim muon", self.options.optim == MUON),
            ):
                if is_given:
                    raise InputError(
                        f"--{name} needs whole weights in every process: it can't be combined with FSDP"
                    )
        # Our LM heads smooth labels themselves, at the labelled positions only. The Trainer's way
        # needs all logits.
        self.label_smoothing = 0.0
        if (
            self.label_smoother is not None
            and "smoothing" in signature(type(self.model).forward).parameters
        ):
            self.label_smoothing, self.label_smoother = self.args.label_smoothing_factor, None
        self.averaging = WeightAveraging(ema_decay) if ema_decay else None
        self.clock = TrainingClock(None if limit is None else limit * 60, command_started)
        patience = self.options.early_stopping_patience if self.args.load_best_model_at_end else 0
        stopping = EarlyStopping(patience) if patience else None
        # the clock may ask for one
        callbacks = (BestCheckpoint(), self.averaging, self.clock, stopping, DivergenceGuard())
        for callback in callbacks:
            if callback is not None:
                self.add_callback(callback)

    def get_train_dataloader(self) -> DataLoader:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        collator = self.data_collator
        if hasattr(collator, "generator"):
            collator = SeededCollator(collator, seed)
            self.remove_callback(SeededCollator)  # that of an earlier loader
            self.add_callback(collator)
        if not self.options.max_tokens_per_batch:
            with self._collating_by(collator):
                return super().get_train_dataloader()
        place = (self.args.process_index, self.args.world_size)
        try:
            sampler = TokenBudgetBatchSampler(
                self.lengths, self.options.max_tokens_per_batch, seed, *place
            )
        except ValueError as error:
            raise InputError(f"--max_tokens_per_batch: {error}") from error
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        # accelerate must see a single process: the share of this one has been taken already.
        return prepare_data_loader(
            loader,
            device=self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            dispatch_batches=False,
        )

    @contextmanager
    def _collating_by(self, collator: Any) -> Iterator[None]:
        given, self.data_collator = self.data_collator, collator
        try:
            yield
        finally:
            self.data_collator = given

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        with self._rows_in_order():
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> DataLoader:
        with self._rows_in_order():
            return super().get_test_dataloader(*args, **kwargs)

    @contextmanager
    def _rows_in_order(self) -> Iterator[None]:
        """Inside the `with`, what is evaluated keeps its order. With `group_by_length` the Trainer
        would sort it as it does the training data, and predictions are compared with references by
        their place."""
        strategy, self.args.train_sampling_strategy = self.args.train_sampling_strategy, "random"
        try:
            yield
        finally:
            self.args.train_sampling_strategy = strategy

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.options.optim == MUON and self.optimizer is None:
            model = self.model if model is None else model
            self.optimizer = make_muon(model, self.args, self.get_decay_parameter_names(model))
        try:
            return super().create_optimizer(model)
        # of torch, or of the optimizer's own package
        except (ImportError, TypeError, ValueError) as error:
            raise InputError(
                f"--optim {self.options.optim}: it can't be made with these --training_arguments: {reason(error)}"
            ) from error

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        try:
            return super().create_scheduler(num_training_steps, optimizer)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"--training_arguments lr_scheduler_kwargs: it can't be made: {reason(error)}"
            ) from error

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self.label_smoothing and model.training:
            inputs = {**inputs, "smoothing": self.label_smoothing}
        if self.options.word_dropout and model.training:
            inputs = {**inputs, "input_ids": self._drop_words(inputs["input_ids"])}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _drop_words(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Some of the tokens `(B, L)` replaced by the mask (Iyyer et al. 2015, ACL); special ones
        stay."""
        special = torch.tensor(self.processing_class.all_special_ids, device=input_ids.device)
        dropped = torch.rand(input_ids.shape, device=input_ids.device) < self.options.word_dropout
        return input_ids.masked_fill(
            dropped & ~torch.isin(input_ids, special), self.processing_class.mask_token_id
        )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, and the averaged weights with it. A checkpoint has both before it has the
        file that makes it complete."""
        super().save_model(output_dir, _internal_call)
        is_checkpoint = _internal_call and output_dir is not None and self.args.should_save
        if is_checkpoint and self.averaging is not None:
            self.averaging.save(Path(output_dir))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        device = self.args.device
        averaged = (
            nullcontext() if self.averaging is None else self.averaging.in_place_of(self.model)
        )
        # What is drawn here, such as masks, is the same each time, so that checkpoints compare, and
        # the training draws on as if nothing had happened.
        with torch.random.fork_rng([device] if device.type == "cuda" else []), averaged:
            torch.manual_seed(self.args.seed)
            return super().evaluate(*args, **kwargs)


def _without_tied(model: nn.Module, found: Any) -> None:
    """Tied weights are saved under one name only, and the Trainer would report the other names as
    missing."""
    tied = getattr(model, "all_tied_weights_keys", {})
    found.missing_keys[:] = [key for key in found.missing_keys if key not in tied]


class RoFormerLiteTrainer(RoFormerLiteTrainerMixin, Trainer):
    """`Trainer` with `TrainingOptions`."""

    args_class = TrainingArguments


class RoFormerLiteSeq2SeqTrainer(RoFormerLiteTrainerMixin, Seq2SeqTrainer):
    """`Seq2SeqTrainer` with `TrainingOptions`."""

    args_class = Seq2SeqTrainingArguments


def make_trainer(
    kind: type[RoFormerLiteTrainerMixin],
    run: Run,
    recipe: "Recipe",
    args: TrainingArguments,
    model: PreTrainedModel,
    rows: DatasetDict,
    encoded: DatasetDict,
    started: float,
) -> Trainer:
    """The task's trainer, which measures on the validation data. `args` are completed by what
    depends on the data.

    Args:
        kind: As from `trainer_class`.
        run: With its defaults filled in.
        recipe, args, model: Of the training.
        rows, encoded: The data, as rows and as inputs of the model.
        started: When the command began, by `time.monotonic`.

    Raises:
        InputError: for training arguments that the Trainer refuses.
    """
    options, train = run.training, encoded["train"]
    if "validation" not in encoded:
        args.eval_strategy, args.load_best_model_at_end = "no", False
    if isinstance(train, Dataset):
        tokens = _tokens_of_a_row(recipe, train) if recipe.has_labels else 0.0
        if options.num_train_epochs is None:
            args.num_train_epochs = epochs_for(len(train), tokens * len(train))
        if "per_device_train_batch_size" in run.filled and tokens:
            most = max(1, round(_TOKENS_OF_A_BATCH / tokens))
            args.per_device_train_batch_size = min(args.per_device_train_batch_size, most)
    if "metric_for_best_model" not in options.stock:
        args.metric_for_best_model = recipe.metric_for_best_model
        args.greater_is_better = is_greater_better(args.metric_for_best_model)
    has_lengths = options.max_tokens_per_batch and isinstance(train, Dataset)
    rows, encoded = longest_first(recipe, rows, encoded)
    parts = recipe.trainer_parts(run, args, model, rows, encoded)
    try:
        return kind(
            args=args,
            processing_class=recipe.tokenizer,
            **parts,
            options=options,
            lengths=recipe.lengths(train) if has_lengths else (),
            command_started=started,
        )
    except (ImportError, ValueError) as error:
        raise InputError(
            f"--training_arguments: the Trainer refuses them here: {reason(error)}"
        ) from error


def longest_first(
    recipe: "Recipe", rows: DatasetDict, encoded: DatasetDict
) -> tuple[DatasetDict, DatasetDict]:
    """The same data with the longest validation rows first, as generating a batch takes as long as
    its longest row."""
    has_row_for_row = "validation" in rows and len(rows["validation"]) == len(encoded["validation"])
    if not has_row_for_row:
        return rows, encoded
    lengths = recipe.lengths(encoded["validation"])
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    sorted_rows = DatasetDict(rows)
    sorted_rows["validation"] = rows["validation"].select(order)
    sorted_encoded = DatasetDict(encoded)
    sorted_encoded["validation"] = encoded["validation"].select(order)
    return sorted_rows, sorted_encoded


def _tokens_of_a_row(recipe: "Recipe", train: Dataset) -> float:
    """On average, by at most 1,000 random rows."""
    some = train.shuffle(seed=0).select(range(min(len(train), _MEASURED_ROWS)))
    return sum(recipe.lengths(some)) / len(some)


def is_faster_in_bfloat16(trainer: RoFormerLiteTrainerMixin, recipe: "Recipe") -> bool:
    """Whether matrices are multiplied in bfloat16 although no option says so.

    They are on a CPU that has instructions for it, unless the training is so short that nothing is
    gained. Weights, optimizer and loss stay in float32.
    """
    args = trainer.args
    is_decided = trainer.options.bf16 is not None or args.mixed_precision != "no"
    has_own_loop = trainer.is_fsdp_enabled or args.torch_compile
    if is_decided or has_own_loop or not recipe.uses_bfloat16 or args.device.type != "cpu":
        return False
    # The function is not in every version of torch.
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()
    is_native = any(capabilities.get(name, False) for name in _BFLOAT16_INSTRUCTIONS)
    return is_native and num_steps(trainer) >= _MIN_BFLOAT16_STEPS


def num_steps(trainer: RoFormerLiteTrainerMixin) -> int:
    """The number of steps of the whole training."""
    args = trainer.args
    if args.max_steps > 0:
        return args.max_steps
    batches = len(trainer.get_train_dataloader()) * args.num_train_epochs
    return math.ceil(batches / args.gradient_accumulation_steps)


def fit(
    trainer: RoFormerLiteTrainerMixin, recipe: "Recipe", train: Dataset, checkpoint: str | None
) -> None:
    """Train, from the beginning or from a checkpoint; the trainer then has the weights that are
    kept."""
    args = trainer.args
    planned = (args.max_steps, args.num_train_epochs)
    saved = TrainerState()
    has_ended = False
    try:
        if is_faster_in_bfloat16(trainer, recipe):
            args.bf16 = True
            args.mixed_precision = "bf16"
            trainer.accelerator.native_amp = True
        if checkpoint is None:
            recipe.prepare_head(trainer, train)
        else:
            saved = TrainerState.load_from_json(str(Path(checkpoint) / STATE_FILE))
            control = saved.stateful_callbacks["TrainerControl"]["args"]
            has_ended = control["should_training_stop"]
            if args.should_save:
                print(f"Resuming from step {saved.global_step}: {checkpoint}", file=sys.stderr)
        if has_ended and isinstance(train, Dataset):
            # Only the final evaluation is missing: the Trainer loads the weights and makes no step.
            # A stream, which has no epochs, is read until its last step instead.
            args.max_steps = -1
            args.num_train_epochs = 0
        elif has_ended:
            args.max_steps = saved.global_step
        trainer.train(resume_from_checkpoint=checkpoint)
        if has_ended:
            args.max_steps, args.num_train_epochs = planned
            trainer.state.max_steps = saved.max_steps
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if trainer.state.global_step > saved.global_step or is_disk_full(
            error, Path(args.output_dir)
        ):
            raise
        remedy = "see --training_arguments and --config"
        if checkpoint is not None:
            remedy = f"remove {checkpoint}, and the training continues from the one before"
        raise InputError(f"no training can begin here: {reason(error)}; {remedy}") from error
    trainer.compute_metrics = None
    # The wrapper of accelerate's autocast goes: the model is measured as it is saved.
    vars(trainer.model).pop("forward", None)
