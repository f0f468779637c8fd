"""The stock trainers with a token budget for batches, a time limit, averaged weights and label
smoothing in the model.

Everything else, the training loop above all, is transformers' own.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from inspect import signature
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset, DatasetDict
from torch import nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer, TrainerState, TrainingArguments

from ..errors import InputError
from ..saved_model import reason
from .bfloat16 import choose_bfloat16, steps_of, use_bfloat16
from .callbacks import (
    DivergenceGuard,
    EarlyStopping,
    SeededCollator,
    TrainingClock,
    WeightAveraging,
    follow_the_clock,
    has_ended,
)
from .muon import MUON, make_muon
from .options import TrainingOptions
from .run import Run
from .token_budget import TokenBudgetBatchSampler
from .training_arguments import epochs_for, is_greater_better
from .training_directory import CheckedCheckpoints, TrainingDirectory

if TYPE_CHECKING:
    from ..recipes.base import Recipe


_MEASURED_BATCHES = 2  # by which memory and time are estimated
_MEASURED_ROWS = 1000
_TOKENS_OF_A_BATCH = 8192  # of rows with labels, on average: 8 million tokens are 1,000 steps


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
        self.checkpoints, guard = CheckedCheckpoints(), DivergenceGuard(self.averaging is not None)
        patience = self.options.early_stopping_patience if self.args.load_best_model_at_end else 0
        stopping = EarlyStopping(patience) if patience else None
        # the clock may ask for one
        for callback in (self.averaging, self.clock, stopping, guard, self.checkpoints):
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
        is_new = self.lr_scheduler is None
        try:
            scheduler = super().create_scheduler(num_training_steps, optimizer)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"--training_arguments lr_scheduler_kwargs: it can't be made: {reason(error)}"
            ) from error
        if is_new and self.clock.limit is not None:
            follow_the_clock(scheduler, self.clock, self.args, num_training_steps)
        return scheduler

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


class RoFormerLiteSeq2SeqTrainer(RoFormerLiteTrainerMixin, Seq2SeqTrainer):
    """`Seq2SeqTrainer` with `TrainingOptions`."""


def make_trainer(
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
        return recipe.training_classes()[1](
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


def fit(
    trainer: RoFormerLiteTrainerMixin,
    recipe: "Recipe",
    train: Dataset,
    checkpoint: str | None,
    directory: TrainingDirectory,
) -> None:
    """Train, from the beginning or from a checkpoint; the trainer then has the weights that are
    kept."""
    args, before = trainer.args, None
    planned = args.max_steps
    try:
        if trainer.options.bf16 is None and recipe.tries_bfloat16 and args.mixed_precision == "no":
            known = directory.state().get("bf16")  # a continued training keeps its type
            chosen = choose_bfloat16(trainer) if known is None else use_bfloat16(trainer, known)
            if args.should_save:
                directory.note(bf16=chosen)
        if checkpoint is None:
            recipe.prepare_head(trainer, train)
        else:
            trainer.checkpoints.check(Path(checkpoint))
            before = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
            if has_ended(before, trainer.clock.limit):
                args.max_steps = before.global_step
            if args.should_save:
                step = Path(checkpoint).name.rpartition("-")[2]
                print(f"Resuming from step {step}: {checkpoint}", file=sys.stderr)
        saves_memory = (
            getattr(args, "activation_checkpointing", None) or args.gradient_checkpointing
        )
        if (
            recipe.tries_bfloat16
            and checkpoint is None
            and not (trainer.is_fsdp_enabled or saves_memory)
        ):
            steps = steps_of(trainer)
            # in all processes: their batches are made together
            memory, minutes = expected_cost(trainer, steps)
            expected = f"{minutes:.2g} minutes without evaluations, {memory / 2**30:.2f} GiB of memory at the peak"
            if args.should_save and steps > 1:
                print(f"Training: at most {steps:,.0f} steps, about {expected}", file=sys.stderr)
        trainer.train(resume_from_checkpoint=checkpoint)
        if before is not None:
            args.max_steps, trainer.state.max_steps = planned, before.max_steps
    except Exception as error:
        begun = trainer.state.global_step > int((checkpoint or "-0").rpartition("-")[2])
        if begun or isinstance(error, (InputError, MemoryError, OSError, torch.OutOfMemoryError)):
            raise
        remedy = (
            f"remove {checkpoint}, and it is made again"
            if checkpoint
            else "see --training_arguments and --config"
        )
        raise InputError(f"no training can begin here: {reason(error)}; {remedy}") from error
    trainer.compute_metrics = None
    # accelerate's autocast: the model is measured as it is saved
    vars(trainer.model).pop("forward", None)


def expected_cost(trainer: RoFormerLiteTrainerMixin, steps: float) -> tuple[int, float]:
    """Bytes of this process (of the GPU, where there is one) at the peak of a training of so many
    steps, and its minutes.

    The bytes are those in use when a batch has gone forward, of which the backward pass needs all,
    or when one is evaluated, whose metrics need its logits twice; and gradients, the states of
    AdamW and averaged weights. A step takes about three times as long as its forward pass.
    """
    model, device, was_training = trainer.model, trainer.args.device, trainer.model.training
    on_gpu = device.type == "cuda"
    sizes = [tensor.nbytes for tensor in model.parameters()]
    states = 3 * sum(tensor.nbytes for tensor in model.parameters() if tensor.requires_grad)
    states += sum(sizes) if trainer.averaging is not None else 0
    used, seconds = [], []

    def note(more: int = 0) -> None:
        now = torch.cuda.memory_allocated(device) if on_gpu else psutil.Process().memory_info().rss
        used.append(now + more)

    with (
        torch.random.fork_rng([device] if on_gpu else []),
        torch.autocast(device.type, torch.bfloat16, enabled=trainer.args.bf16),
    ):
        model.train()
        for batch in islice(iter(trainer.get_train_dataloader()), _MEASURED_BATCHES):
            started = time.perf_counter()
            loss = trainer.compute_loss(model, dict(batch))
            loss.item()  # waits for the device
            seconds.append(time.perf_counter() - started)
            note()
            del loss
        model.eval()
        # which takes long, and no logits
        generates = getattr(trainer.args, "predict_with_generate", False)
        measured = trainer.eval_dataset is not None and not generates
        for batch in islice(iter(trainer.get_eval_dataloader()), 1) if measured else ():
            # the longest rows
            _, logits, _ = trainer.prediction_step(model, batch, prediction_loss_only=False)
            note(logits.nbytes if isinstance(logits, torch.Tensor) else 0)
            del logits
        model.train(was_training)
    batches = steps * trainer.args.gradient_accumulation_steps
    return max(used) + states, 3 * min(seconds) * batches / 60
