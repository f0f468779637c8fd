"""`roformer-lite train`: from the options to a finished model directory. The training loop is the stock Trainer's."""

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, disable_progress_bars
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoTokenizer,
    EvalPrediction,
    GenerationConfig,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerState,
    set_seed,
)

from ..errors import InputError
from ..model.tokenization_roformer_lite import RoFormerLiteTokenizer
from ..output_directory import check_output_dir, is_disk_full
from .arguments import CardArguments, DataArguments, LiteTrainingArguments, ModelArguments, parse_overrides
from .data_sets import load_raw_datasets
from .results import Evaluation, Run, create_repository, finish
from .resume import claim, last_complete_checkpoint, training_dir
from .tasks import TASKS
from .tasks.base import Task

_SECRETS = ("--hub_token", "--hub-token")


@dataclass
class TrainOptions:
    """All options of one `train` command."""

    task: Task
    data: DataArguments
    model: ModelArguments
    card: CardArguments
    training: LiteTrainingArguments
    command: str
    output_dir: Path = field(init=False)
    push_to_hub: bool = field(init=False)

    def __post_init__(self):
        # The Trainer writes and uploads checkpoints; the finished model is ours to write and upload.
        self.output_dir = Path(self.training.output_dir)
        self.training.output_dir = str(training_dir(self.output_dir))
        self.push_to_hub, self.training.push_to_hub = self.training.push_to_hub, False


def parse_options(task_name: str, argv: Sequence[str]) -> TrainOptions:
    """Parse the options of `roformer-lite train TASK`."""
    task_class = TASKS[task_name]
    parser = HfArgumentParser(
        [task_class.arguments, ModelArguments, CardArguments, task_class.training_arguments],
        prog=f"roformer-lite train {task_name}",
        description=f"Train a model for {task_class.summary}.",
        allow_abbrev=False,
    )
    *parsed, unknown = parser.parse_args_into_dataclasses(
        list(argv), return_remaining_strings=True, look_for_args_file=False
    )
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    data, model, card, training = parsed
    command = shlex.join(["roformer-lite", "train", task_name, *_without_secrets(argv)])
    return TrainOptions(task_class(data), data, model, card, training, command)


def _without_secrets(argv: Sequence[str]) -> list[str]:
    """The arguments as the card may show them: without the token of the Hub."""
    shown, is_secret = [], False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if not is_secret:
            shown.append(name if name in _SECRETS else argument)
        is_secret = name in _SECRETS and not equals
    return shown


def train(options: TrainOptions) -> Run:
    """Read the data, train tokenizer and model, measure, save, and say where things lie.

    A training that was interrupted goes on from its last checkpoint when the same command is given again.

    Raises:
        InputError: about options and data, before anything is trained; and when the disk is full.
    """
    started = time.monotonic()
    task, args = options.task, options.training
    state_dir = Path(args.output_dir)
    with args.main_process_first(local=False, desc="claiming the output directory"):
        if args.should_save:
            check_output_dir(options.output_dir, args.overwrite_output_dir)
            claim(state_dir, _identity(options), args.overwrite_output_dir)
            if options.push_to_hub:
                create_repository(args, options.output_dir.name)
        elif not state_dir.exists():
            raise InputError(
                f"--output_dir {options.output_dir}: the main process made {state_dir}, but this machine does not see "
                "it; give a directory on a disk that all machines share"
            )
    resume_from = args.resume_from_checkpoint or last_complete_checkpoint(state_dir, averaged=bool(args.ema_decay))
    if not args.should_save:
        disable_progress_bars()  # of the data, which every process prepares
    set_seed(args.seed)
    cache_dir = state_dir / f"data-{args.process_index}"
    shutil.rmtree(cache_dir, ignore_errors=True)
    try:
        raw = load_raw_datasets(task, options.data, cache_dir, args.seed)
        task.learn(raw["train"])
        tokenizer = make_tokenizer(options, raw["train"], state_dir)
        model = make_model(options, tokenizer)
        encoded = encode(task, raw, tokenizer)
        saved_generation_config = _set_generation(task, model, args)
        trainer = make_trainer(options, model, tokenizer, raw, encoded, resume_from)
        if resume_from and trainer.is_world_process_zero():
            step = TrainerState.load_from_json(f"{resume_from}/trainer_state.json").global_step
            print(f"Resuming from step {step}: {resume_from}", file=sys.stderr)
        trainer.train(resume_from_checkpoint=resume_from)
        run = Run(
            task=task,
            options=options,
            model=model,
            tokenizer=tokenizer,
            history=trainer.state.log_history,
            steps=trainer.state.global_step,
            epochs=trainer.state.epoch or 0.0,
            train_seconds=trainer.clock.elapsed,
            rows={split: len(rows) for split, rows in raw.items()},
            example=raw.get("validation", raw["train"])[0],
            evaluations=[
                evaluate(trainer, task, split, raw[split], encoded[split], tokenizer)
                for split in ("validation", "test")
                if split in raw
            ],
        )
        model.generation_config = saved_generation_config
        if trainer.is_world_process_zero():
            finish(run, started)
        _leave_process_group(trainer)
        return run
    except Exception as error:
        if not isinstance(error, InputError) and is_disk_full(error, state_dir):
            raise InputError(
                f"{state_dir}: no space left on the disk for data and checkpoints; make room and give the same "
                "command again, training then goes on from the last complete one"
            ) from error
        raise
    finally:
        shutil.rmtree(cache_dir, ignore_errors=True)


def _leave_process_group(trainer: Trainer) -> None:
    """End the process group, the wrapper of `DistributedDataParallel` first.

    A wrapper that outlives the group's name is the last to hold it, and takes it down with the interpreter's lock in
    hand: that waits for gloo's threads, and one of them may be waiting for the lock.
    """
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()
    trainer.accelerator.end_training()


def make_tokenizer(options: TrainOptions, train_rows: Dataset, state_dir: Path) -> PreTrainedTokenizerBase:
    """The tokenizer given, or that of the model given, or one trained on the training data."""
    given = options.model.tokenizer or options.model.model_name_or_path
    if given:
        try:
            tokenizer = AutoTokenizer.from_pretrained(given)
        except (OSError, ValueError) as error:
            raise InputError(f"no tokenizer can be loaded from {given}: {error}") from error
    else:
        with options.training.main_process_first(local=False, desc="training the tokenizer"):
            if options.training.should_save and not (state_dir / "tokenizer").exists():
                _train_tokenizer(options, train_rows).save_pretrained(state_dir / "tokenizer.unfinished")
                (state_dir / "tokenizer.unfinished").rename(state_dir / "tokenizer")
            tokenizer = AutoTokenizer.from_pretrained(state_dir / "tokenizer")
    tokenizer.model_max_length = options.task.max_length
    options.task.prepare_tokenizer(tokenizer)
    return tokenizer


def _train_tokenizer(options: TrainOptions, train_rows: Dataset) -> RoFormerLiteTokenizer:
    try:
        return RoFormerLiteTokenizer.train(
            options.task.texts(train_rows),
            vocab_size=options.model.vocab_size,
            algorithm=options.model.tokenizer_algorithm,
            min_frequency=options.model.tokenizer_min_frequency,
            show_progress=False,
        )
    except ValueError as error:
        raise InputError(f"the tokenizer cannot be trained: {error}") from error


def make_model(options: TrainOptions, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model given with a head for the task, or a new one of the size asked for."""
    task, arguments = options.task, options.model
    overrides = parse_overrides(arguments.config, task.config_class)
    try:
        if arguments.model_name_or_path:
            config = AutoConfig.from_pretrained(arguments.model_name_or_path)
            config = type(config).from_dict(merged(config.to_dict(), {**task.config_fields(), **overrides}))
            if len(tokenizer) > config.vocab_size:
                raise InputError(
                    f"the tokenizer has {len(tokenizer)} tokens, but {arguments.model_name_or_path} a vocabulary of "
                    f"{config.vocab_size}; give the tokenizer that the model was trained with"
                )
            return task.auto_model.from_pretrained(arguments.model_name_or_path, config=config)
        fields = {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.cls_token_id,
            "eos_token_id": tokenizer.sep_token_id,
        }
        if "decoder_start_token_id" in task.config_class.__dataclass_fields__:
            fields["decoder_start_token_id"] = tokenizer.cls_token_id
        return task.auto_model.from_config(
            task.config_class.from_preset(arguments.size, **{**fields, **task.config_fields(), **overrides})
        )
    except (StrictDataclassError, ValueError, OSError) as error:
        raise InputError(f"no model can be made: {error}") from error


def merged(fields: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`fields` of a config with `overrides` in their place, those of an encoder or a decoder inside theirs."""
    nested = {name: merged(fields[name], value) for name, value in overrides.items() if name in ("encoder", "decoder")}
    return {**fields, **overrides, **nested}


def encode(task: Task, raw: DatasetDict, tokenizer: PreTrainedTokenizerBase) -> DatasetDict:
    """Model inputs of every split. Long examples of validation and test come first: generation is as long as the
    longest of its batch."""
    encoded = DatasetDict()
    for split, rows in raw.items():
        encoded[split] = task.encode(rows, tokenizer, training=split == "train")
        if split != "train" and len(encoded[split]) == len(rows):
            lengths = task.lengths(encoded[split])
            order = sorted(range(len(rows)), key=lambda i, lengths=lengths: -lengths[i])
            encoded[split], raw[split] = encoded[split].select(order), rows.select(order)
    return encoded


def make_trainer(
    options: TrainOptions,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    raw: DatasetDict,
    encoded: DatasetDict,
    resume_from: str | None,
) -> Trainer:
    """The task's trainer, with the library's own collator and metrics on the validation data."""
    task, args = options.task, options.training
    if "validation" not in encoded:
        args.eval_strategy = "no"
    compute_metrics = None
    if "validation" in encoded and not task.measures_loss_only(args):
        compute_metrics = partial(_metrics, task, raw["validation"], tokenizer)
    return task.trainer(
        model=model,
        args=args,
        data_collator=task.collator(tokenizer, model),
        train_dataset=encoded["train"],
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=task.reduce_logits,
        lengths=task.lengths(encoded["train"]) if args.max_tokens_per_batch else (),
        averaging_from=resume_from,
    )


def _metrics(
    task: Task, raw: Dataset, tokenizer: PreTrainedTokenizerBase, prediction: EvalPrediction
) -> dict[str, float]:
    return task.metrics(prediction, raw, tokenizer)


def evaluate(
    trainer: Trainer, task: Task, split: str, raw: Dataset, encoded: Dataset, tokenizer: PreTrainedTokenizerBase
) -> Evaluation:
    """The final figures of a split, and the time they took."""
    set_seed(trainer.args.seed)  # the same masks for masked language models, whatever the training drew
    started = time.monotonic()
    trainer.compute_metrics = None
    if hasattr(trainer.args, "predict_with_generate"):
        trainer.args.predict_with_generate = True
    output = trainer.predict(encoded, metric_key_prefix=split)
    prediction = EvalPrediction(output.predictions, output.label_ids)
    metrics = {"loss": output.metrics[f"{split}_loss"], **task.metrics(prediction, raw, tokenizer)}
    return Evaluation(split, metrics, len(raw), time.monotonic() - started)


def _set_generation(task: Task, model: PreTrainedModel, args: LiteTrainingArguments) -> GenerationConfig | None:
    """Set the task's defaults of `generate`; returns a copy, as the Trainer fills its own with the library's."""
    if not model.can_generate():
        return None
    task.prepare_generation(model, args)
    return GenerationConfig.from_dict(model.generation_config.to_dict())


def _identity(options: TrainOptions) -> dict[str, Any]:
    """What must be the same for a training to be continued."""
    training = {name: getattr(options.training, name) for name in ("seed", "max_tokens_per_batch", "ema_decay")}
    return {"task": options.task.name, **asdict(options.data), **asdict(options.model), **training}
