"""The beginning of a new head: its bias for several labels or a number, and the fit of a classifier
or tagger on the outputs of its frozen encoder.

The gradients of a random head would first distort a trained encoder. If the head is fitted first,
fine-tuning changes the encoder much less (Kumar et al. 2022, ICLR, arXiv:2202.10054).
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hf_roformer_lite.model.heads_roformer_lite import IGNORE_INDEX, sequence_loss
from hf_roformer_lite.model.hub import AUTO_CLASSES

from ..data.blocks import batches
from ..options.run import Run
from ..options.tasks import ClassifyDataArguments
from ..saved.saved_model import load_config, read_optional_object

# The head is fitted on about this many texts or words.
MAX_FITTED_ITEMS = 20_000
# Penalties on the squared weights, for states with a mean square of 1.
PENALTIES = (300.0, 100.0, 30.0, 10.0, 3.0, 1.0)
# L-BFGS stops after this many iterations.
MAX_ITERATIONS = 100


class EvaluateFirstStep(TrainerCallback):
    """Evaluates and saves the model after the first step.

    The learning rate of that step is 0 if there is a warm-up, so the fitted head is saved
    unchanged. It remains the final model if no later checkpoint is better on the validation data.
    """

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 1 and args.load_best_model_at_end:
            # Every evaluated model is saved; see `BestCheckpoint`.
            control.should_evaluate = True


def convert_sentence_encoder(run: Run, args: TrainingArguments, folder: Path) -> Run:
    """Convert the sentence encoder that a classifier starts from into a RoFormerLite model.

    The new head then reads the sentence vectors that the encoder was trained to produce, whereas
    stock classification heads read the first token.

    Args:
        run: The run of any task.
        args: The arguments of the Trainer, which say whether this is the main process.
        folder: The converted model is written here.

    Returns:
        A run that starts from the converted model. `run` itself is returned if it does not start
        from a sentence encoder of another architecture, if the encoder cannot be converted, if
        `--fit_head` is false, or if `--config` sets fields of the encoder's own class.
    """
    name = run.model.model_name_or_path
    if name is None or not isinstance(run.data, ClassifyDataArguments):
        return run
    if not run.data.fit_head or run.model.config:
        return run
    pooling = read_optional_object(name, "1_Pooling/config.json")
    if not pooling or load_config(name).model_type in AUTO_CLASSES:
        return run
    # This import takes long because it loads the converters of all architectures.
    from hf_roformer_lite.conversion import ConversionError, convert_checkpoint, sentence_pooling

    if sentence_pooling(name) is None:
        return run
    try:
        convert_checkpoint("auto", name, folder)
    except ConversionError as error:
        message = f"it is trained in its own class because it cannot be converted: {error}"
    else:
        message = "converted to a RoFormerLite model, whose head reads the sentence vectors"
        run = replace(run, model=replace(run.model, model_name_or_path=str(folder)))
    if args.should_save:
        print(f"{name}: {message}", file=sys.stderr)
    return run


@torch.no_grad()
def start_at_mean_labels(model: PreTrainedModel, train: Dataset) -> None:
    """Set the bias of a new head for several labels to the log-odds of each label, and that of a
    regression to the mean of its numbers, whose standard deviation scales the weights.

    Otherwise, the first epochs only teach the model that each of many labels is rare, or how large
    the numbers are: Adam moves a weight by at most the learning rate in a step, which does not
    reach numbers near 100 in most trainings.

    Args:
        model: A model with a new head. If each row has one label, or if the head has no bias, it
            stays as it is.
        train: The encoded training data.
    """
    layer = output_layer(model)
    problem_type = model.config.problem_type
    if layer is None or problem_type not in ("multi_label_classification", "regression"):
        return
    sums = np.zeros(layer.out_features)
    for batch in train.with_format("numpy", columns=["labels"]).iter(batch_size=1000):
        sums += batch["labels"].sum(axis=0)
    bias = sums / len(train)
    if problem_type == "regression":
        layer.weight.mul_(np.std(train["labels"]))
    else:
        # The half avoids infinite values.
        bias = np.log((sums + 0.5) / (len(train) - sums + 0.5))
    layer.bias.copy_(torch.from_numpy(bias))


def fit_head(trainer: Trainer) -> None:
    """Set the last layer of the model's head to the best linear model on the states of its frozen
    encoder.

    The penalty on its weights is chosen by the loss on 20 % of the items. If there are
    validation data, the model with the fitted head becomes the first checkpoint. A head without a
    suitable layer keeps its random weights.

    Args:
        trainer: The trainer, before it trains. About 20,000 texts or words of its training data are
            used. If there are several processes, each does the same.
    """
    model: Any = trainer.model
    layer = output_layer(model)
    if layer is None:
        if trainer.is_world_process_zero():
            print(
                "the new head keeps its random weights: it has no linear layer with a bias to fit",
                file=sys.stderr,
            )
        return
    problem_type = model.config.problem_type or "single_label_classification"
    # The shapes are (items, hidden) and (items, ...).
    states, labels = _labelled_states(trainer, layer)
    mean = states.mean(dim=0)
    states = states - mean
    scale = states.square().mean().sqrt().clamp(min=torch.finfo(states.dtype).tiny)
    fitted = _fit_with_best_penalty(states / scale, labels, layer.out_features, problem_type)
    weight = fitted.weight.detach() / scale
    bias = fitted.bias.detach() - weight @ mean
    layer.load_state_dict({"weight": weight, "bias": bias})
    trainer.add_callback(EvaluateFirstStep())


def output_layer(model: PreTrainedModel) -> nn.Linear | None:
    """The last linear layer of the head of any class of models, or None if that layer has no bias,
    as in causal classes, which apply it to every token."""
    in_stack = set(model.base_model.modules())
    linear = [
        part for part in model.modules() if isinstance(part, nn.Linear) and part not in in_stack
    ]
    if not linear or linear[-1].bias is None:
        return None
    return linear[-1]


@torch.no_grad()
def _labelled_states(trainer: Trainer, layer: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs of the last layer for shuffled training data, and their labels."""
    model: Any = trainer.model
    train: Any = trainer.train_dataset
    order = np.random.default_rng(trainer.args.seed).permutation(len(train))
    states = []
    labels = []
    # A hook would get padded states, so that padding would have to be computed.
    vars(layer)["forward"] = nn.Identity()
    # The Trainer turns dropout on again.
    model.eval()
    for batch in batches(
        model, train.select(order), trainer.data_collator, trainer.args.eval_batch_size
    ):
        labels.append(batch.pop("labels"))
        states.append(model(**batch).logits.float())
        if states[-1].ndim == 3:
            # There is a state for each token.
            is_labelled = labels[-1] != IGNORE_INDEX
            states[-1] = states[-1][is_labelled]
            labels[-1] = labels[-1][is_labelled]
        if sum(map(len, labels)) >= MAX_FITTED_ITEMS:
            break
    del vars(layer)["forward"]
    return torch.cat(states), torch.cat(labels)


@torch.enable_grad()
def _fit_with_best_penalty(
    states: torch.Tensor, labels: torch.Tensor, num_outputs: int, problem_type: str
) -> nn.Linear:
    """Fit a linear layer with the penalty that has the lowest loss on the 20 % held out.

    Args:
        states: `(items, hidden)`, with the items shuffled.
        labels: `(items, ...)`.
        num_outputs: The number of outputs of the layer.
        problem_type: As in the configuration of a model.
    """
    layer = nn.utils.skip_init(nn.Linear, states.shape[1], num_outputs, device=states.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)

    # scikit-learn has another estimator for each kind of label.
    def fit(rows: slice, penalty: float) -> None:
        optimizer = torch.optim.LBFGS(
            layer.parameters(), max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = sequence_loss(layer(states[rows]), labels[rows], problem_type)
            value = value + penalty / (2 * len(states)) * layer.weight.square().sum()
            value.backward()
            return value

        optimizer.step(loss)

    num_held_out = len(states) // 5
    held_out = slice(0, num_held_out)
    kept = slice(num_held_out, None)
    best_penalty = PENALTIES[0]
    if num_held_out:
        lowest_loss = torch.inf
        # Each fit starts from the weights of the previous one.
        for penalty in PENALTIES:
            fit(kept, penalty)
            with torch.no_grad():
                logits = layer(states[held_out])
                loss = sequence_loss(logits, labels[held_out], problem_type).item()
            if loss > lowest_loss:
                break
            best_penalty = penalty
            lowest_loss = loss
    fit(slice(None), best_penalty)
    return layer
