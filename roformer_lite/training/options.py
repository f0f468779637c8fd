"""The options of one `train` command."""

from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from .arguments import DataArguments, ModelArguments
from .devices import DEVICES, devices_of
from .fine_tuning import FineTuning
from .publishing_arguments import CardArguments, HubArguments
from .resume import training_directory
from .seed_directory import SeedDirectory
from .tasks.base import Task
from .trainer_arguments import RoFormerLiteTrainingArguments

# What may be another when a training is continued. All other options must be the same, those of later versions of
# transformers too.
_MEASURING = frozenset(
    "bleu_tokenizer test_file test_split eval_strategy eval_steps eval_delay eval_on_start eval_accumulation_steps "
    "eval_do_concat_batches eval_use_gather_object per_device_eval_batch_size bf16_full_eval fp16_full_eval "
    "prediction_loss_only batch_eval_metrics include_for_metrics predict_with_generate generation_max_length "
    "generation_num_beams generation_config do_train do_eval do_predict".split()
)
_SAVING_AND_REPORTING = frozenset(
    "output_dir overwrite_output_dir keep_checkpoints remote_code resume_from_checkpoint save_strategy save_steps "
    "save_total_limit save_only_model save_on_each_node enable_jit_checkpoint logging_strategy logging_steps "
    "logging_first_step logging_nan_inf_filter log_level log_level_replica log_on_each_node report_to run_name "
    "project trackio_space_id trackio_bucket_id trackio_static_space_id disable_tqdm skip_memory_metrics "
    "include_num_input_tokens_seen restore_callback_states_from_checkpoint debug hub_strategy hub_always_push "
    "dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor torch_empty_cache_steps "
    "ddp_timeout ddp_backend ddp_bucket_cap_mb local_rank logging_dir".split()
) | {option.name for option in fields(HubArguments)}
_WHEN_MEASURED = frozenset("eval_strategy eval_steps eval_delay eval_on_start save_strategy save_steps".split())
_GENERATION = frozenset(
    "bleu_tokenizer predict_with_generate generation_max_length generation_num_beams generation_config".split()
)
# Figures of several seeds are compared, those on the test data too.
_FIGURES = _GENERATION | {"test_file", "test_split", "bf16_full_eval", "fp16_full_eval"}


@dataclass
class TrainOptions:
    """All options of one `train` command.

    `training.output_dir`, where the Trainer writes its checkpoints, is a directory beside `output_dir`, where the
    finished model is saved. The Trainer never uploads; `push_to_hub` says whether the finished model is uploaded.

    One of the trainings of `--seeds` saves its model in `model_dir`, a directory of `siblings`, until all of them are
    finished; otherwise `model_dir` is `output_dir`, and there are no `siblings`.
    """

    task: Task
    data: DataArguments
    model: ModelArguments
    card: CardArguments
    training: RoFormerLiteTrainingArguments
    command: str
    fine_tuning: FineTuning = field(default_factory=FineTuning)
    output_dir: Path = field(init=False)
    model_dir: Path = field(init=False)
    siblings: SeedDirectory | None = field(init=False, default=None)
    overwrites_siblings: bool = field(init=False, default=False)
    push_to_hub: bool = field(init=False)

    def __post_init__(self):
        self.output_dir = self.model_dir = Path(self.training.output_dir)
        self.training.output_dir = str(training_directory(self.output_dir))
        self.push_to_hub, self.training.push_to_hub = self.training.push_to_hub, False

    @property
    def tokenizer_dir(self) -> Path:
        """Where a tokenizer that is trained is kept: one for all siblings, as training another need not give the
        same."""
        return self.siblings.path if self.siblings else Path(self.training.output_dir)

    def take_seed(self, seed: int, siblings: SeedDirectory, is_first: bool) -> None:
        """Make these the options of the training with `seed`, one of `siblings`.

        The first training decides on bfloat16, where that is open: the others must differ from it in the seed alone.

        Args:
            is_first: Whether it is the first one of this command, which may delete what an earlier command has left.
        """
        args = self.training
        args.seed, self.siblings, self.model_dir = seed, siblings, siblings.model_dir(seed)
        args.output_dir = str(training_directory(self.model_dir))
        self.overwrites_siblings = is_first and args.overwrite_output_dir
        finished = siblings.finished()
        if args.may_choose_type and finished:
            first = next(iter(finished.values()))
            args.take_type(first["training"]["arguments"].get("bf16", False))
            args.may_choose_type = False

    @property
    def split_seed(self) -> int:
        """What determines the rows that are held out: the first of several seeds, for all of them."""
        return self.training.seeds[0] if self.training.seeds else self.training.seed

    def identity(self) -> dict[str, Any]:
        """The options that must be the same for a training to be continued: all that shape its result.

        What only measures may be another, unless the measurements decide something: which checkpoint is the best one,
        or when the learning rate falls.
        """
        args = self.training
        free = _MEASURING | _SAVING_AND_REPORTING
        if (
            args.load_best_model_at_end
            or args.save_strategy == "best"
            or args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
        ):
            by_loss = (args.metric_for_best_model or "loss").endswith("loss")
            free = free - _WHEN_MEASURED - (frozenset() if by_loss else _GENERATION)
        if args.seeds:
            free -= _FIGURES
        training = {option.name: getattr(args, option.name) for option in fields(args) if option.init}
        if args.epochs_follow_data:
            training["num_train_epochs"] = None
        if args.may_choose_type:
            training["bf16"] = None
        if args.cpu_follows_launcher:
            training["use_cpu"] = False  # as in a command without a launcher, which may begin or end the training
        training[DEVICES] = devices_of(args)
        options = {"task": self.task.name, **asdict(self.data), **asdict(self.model), **training}
        return {name: _plain(value) for name, value in options.items() if name not in free}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
