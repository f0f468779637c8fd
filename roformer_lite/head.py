"""Fits the new head of a classifier or tagger while its encoder stands still.

The gradients of a random head first bend a trained encoder towards that head; after a fitted one
they begin where only what the encoder lacks is left to learn (Kumar et al. 2022, ICLR,
arXiv:2202.10054).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    get_linear_schedule_with_warmup,
)

from hf_roformer_lite.model.heads_roformer_lite import IGNORE_INDEX, sequence_loss

from .saved_model import is_ours, load_config, read_optional_object

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import Trainer, TrainingArguments

    from .run import Run

_MOST_ITEMS = 20_000  # texts or words that the head is fitted on
# on squared weights, for states with a mean square of 1
_PENALTIES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
_MOST_STEPS = 100  # of L-BFGS
_TRIED = 256  # texts by which the fitted head is compared with the random one
CONTRASTED_ROWS = 500  # with more, the training itself teaches the encoder enough
# steps, and how often they see each text between the two
_FEWEST_CONTRASTS, _MOST_CONTRASTS, _PASSES = 32, 96, 12
_MOST_TEXTS, _MOST_TOKENS = 48, 4096  # of a step


class MeasuredFirst(TrainerCallback):
    """Measures and saves the model after the first step, whose learning rate is 0 where there is a
    warm-up. The fitted head is then kept as it is if nothing later is better on the validation
    data."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 1 and args.load_best_model_at_end:
            control.should_evaluate = control.should_save = True


def read_as_trained(run: Run, folder: Path) -> Run:
    """The run of a classifier that starts from a sentence encoder of another architecture, which is
    converted into `folder`: the new head then reads the vectors that the encoder was trained to
    give, where a head of transformers reads the first token. Any other run stays as it is, and one
    without `--fit_head` or with `--config`, whose fields are those of the encoder's own class."""
    name = run.model.model_name_or_path
    if name is None or run.task != "classify" or not run.data.fit_head or run.model.config:
        return run
    if not read_optional_object(name, "1_Pooling/config.json") or is_ours(load_config(name)):
        return run
    # With it come all sources of weights, at some cost.
    from hf_roformer_lite.conversion import ConversionError, convert_checkpoint, sentence_pooling

    if sentence_pooling(name) is None:
        return run
    try:
        convert_checkpoint("auto", name, folder)
    except ConversionError as error:
        print(
            f"{name}: it is trained in its own class, as it can't be converted: {error}",
            file=sys.stderr,
        )
        return run
    print(
        f"{name}: a model of this package with its weights, whose head reads its sentence vectors",
        file=sys.stderr,
    )
    return replace(run, model=replace(run.model, model_name_or_path=str(folder)))


def ends_fitted(run: Run, args: TrainingArguments) -> bool:
    """Whether a classifier that learns from pairs of few rows may end with its fitted head, as no
    option asks for what comes after that; several processes don't learn from pairs. `run` has its
    defaults filled in."""
    asked = [run.data.class_weights, run.data.min_precision, run.data.text_scores]
    asked += {"num_train_epochs", "word_dropout", "ema_decay"} - run.filled
    return args.world_size == 1 and args.max_steps < 1 and not any(asked)


def contrast(trainer: Trainer, train: Dataset) -> None:
    """Teach the encoder the labels before its head is fitted, as in SetFit (Tunstall et al. 2022,
    arXiv:2209.11055): the cosine of two texts shall be 1 where they have the same label, and 0
    where not. All pairs of a batch count, so that a few steps suffice.

    Args:
        trainer: Before its training. Each of several processes does the same.
        train: The encoded training data, few rows with one label each.
    """
    model, labels, layer = trainer.model, np.array(train["labels"]), _output_layer(trainer.model)
    if layer is None or model.config.classifier_pooling == "late":  # which sees every token
        return
    draw, was_training = np.random.default_rng(trainer.args.seed), model.training
    texts = min(_MOST_TEXTS, max(8, _MOST_TOKENS // max(map(len, train["input_ids"]))))
    steps = min(_MOST_CONTRASTS, max(_FEWEST_CONTRASTS, _PASSES * len(train) // texts))
    optimizer = torch.optim.AdamW(model.base_model.parameters(), lr=trainer.args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.train()
    for _ in range(steps):
        chosen = draw.permutation(np.unique(labels))[: texts // 2]
        of_each = (
            draw.permutation(np.flatnonzero(labels == label))[: texts // len(chosen)]
            for label in chosen
        )
        batch = trainer.data_collator(
            [train[row] for row in np.concatenate(list(of_each)).tolist()]
        )
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        model(**batch)
        vectors = nn.functional.normalize(seen.pop(), dim=-1)
        same = batch["labels"][:, None] == batch["labels"]
        errors = (vectors @ vectors.T - same.float()).square()
        pairs = same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        loss = errors[~same].mean() + (errors[pairs].mean() if pairs.any() else 0)
        loss.backward()
        nn.utils.clip_grad_norm_(model.base_model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
    hook.remove()
    model.train(was_training)


def fit_head(trainer: Trainer, train: Dataset) -> bool:
    """Set the last layer of the model's head to the best linear model on the states of its frozen
    encoder, and return whether it stays so.

    The penalty on its weights is the one for which a fifth of the items, held out, has the least
    loss.

    Where there are validation data, that model is the first checkpoint.

    Args:
        trainer: Before its training. Each of several processes does the same.
        train: The encoded training data; of large ones about 20,000 texts or words are taken.
    """
    model = trainer.model
    layer = _output_layer(model)
    if layer is None:
        print(
            "the new head begins with random numbers: it has no linear layer with a bias to fit",
            file=sys.stderr,
        )
        return False
    problem_type = model.config.problem_type or "single_label_classification"
    states, labels = _labelled_states(trainer, train, layer)  # (items, hidden), (items, …)
    mean = states.mean(dim=0)
    states = states - mean
    scale = states.square().mean().sqrt().clamp(min=torch.finfo(states.dtype).tiny)
    fitted = _fit_with_best_penalty(states / scale, labels, layer.out_features, problem_type)
    random, weight = _training_loss(trainer, train), fitted.weight.detach() / scale
    new = {"weight": weight, "bias": fitted.bias.detach() - weight @ mean}
    old = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(new)
    if _training_loss(trainer, train) > random:
        layer.load_state_dict(old)
        print(
            "the new head begins with random numbers: with dropout a fitted one has a higher loss",
            file=sys.stderr,
        )
        return False
    trainer.add_callback(MeasuredFirst())
    return True


def _output_layer(model: PreTrainedModel) -> nn.Linear | None:
    """The last layer of a head, in whatever class; one without bias, as in causal classes, sees
    every token."""
    in_stack = set(model.base_model.modules())
    linear = [
        part for part in model.modules() if isinstance(part, nn.Linear) and part not in in_stack
    ]
    return linear[-1] if linear and linear[-1].bias is not None else None


@torch.no_grad()
def _labelled_states(
    trainer: Trainer, train: Dataset, layer: nn.Linear
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last layer sees of training data in random order, and the labels."""
    model, order = trainer.model, np.random.default_rng(trainer.args.seed).permutation(len(train))
    loader = DataLoader(
        train.select(order), trainer.args.eval_batch_size, collate_fn=trainer.data_collator
    )
    states, labels = [], []
    hook = layer.register_forward_pre_hook(lambda _, inputs: states.append(inputs[0].float()))
    was_training = model.training
    model.eval()
    for batch in loader:
        labels.append(batch["labels"].to(model.device))
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
        if states[-1].ndim == 3:  # of tokens
            is_labelled = labels[-1] != IGNORE_INDEX
            states[-1], labels[-1] = states[-1][is_labelled], labels[-1][is_labelled]
        if sum(map(len, labels)) >= _MOST_ITEMS:
            break
    model.train(was_training)
    hook.remove()
    return torch.cat(states), torch.cat(labels)


@torch.no_grad()
def _training_loss(trainer: Trainer, train: Dataset) -> float:
    """The loss of a few batches with dropout. States that hardly differ, as those of an untrained
    encoder, are fitted by weights so large that dropout outweighs what they tell."""
    rows = train.select(range(min(len(train), _TRIED)))
    loader = DataLoader(rows, trainer.args.eval_batch_size, collate_fn=trainer.data_collator)
    was_training = trainer.model.training
    trainer.model.train()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        losses = [
            trainer.model(
                **{name: tensor.to(trainer.model.device) for name, tensor in batch.items()}
            ).loss.item()
            for batch in loader
        ]
    trainer.model.train(was_training)
    return sum(losses) / len(losses)


@torch.enable_grad()
def _fit_with_best_penalty(
    states: torch.Tensor, labels: torch.Tensor, outputs: int, problem_type: str
) -> nn.Linear:
    """A linear layer from `states` `(items, hidden)` to `outputs` numbers. The items are in random
    order."""
    layer = nn.utils.skip_init(nn.Linear, states.shape[1], outputs, device=states.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)

    def fit(rows: slice, penalty: float) -> None:
        optimizer = torch.optim.LBFGS(
            layer.parameters(), max_iter=_MOST_STEPS, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = sequence_loss(layer(states[rows]), labels[rows], problem_type)
            value = value + penalty / (2 * len(states)) * layer.weight.square().sum()
            value.backward()
            return value

        optimizer.step(loss)

    held_out, kept = slice(0, len(states) // 5), slice(len(states) // 5, None)
    best, least = _PENALTIES[0], torch.inf
    for penalty in _PENALTIES if held_out.stop else ():  # each starts where the one before ended
        fit(kept, penalty)
        with torch.no_grad():
            loss = sequence_loss(layer(states[held_out]), labels[held_out], problem_type).item()
        if loss > least:
            break
        best, least = penalty, loss
    fit(slice(None), best)
    return layer
