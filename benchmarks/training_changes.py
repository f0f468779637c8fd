"""Changes to training for which others report gains: `python -m benchmarks.training_changes CHANGE
train TASK …`.

A change is patched into the process of `roformer-lite train`, so that the program itself does not
contain changes without a gain.
"""

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel

from hf_roformer_lite.model.modeling_roformer_lite import (
    RoFormerLiteAttention,
    RoFormerLiteMLP,
    RoFormerLiteModel,
)
from roformer_lite.cli import main as roformer_lite
from roformer_lite.recipes.base import Start
from roformer_lite.run import parse_run
from roformer_lite.train import train
from roformer_lite.train.callbacks import SeededCollator
from roformer_lite.train.trainer import RoFormerLiteTrainer

# The number of short blocks in a block, and of small batches in a batch.
NUM_SHORT_BLOCKS = 4
NUM_SMALL_BATCHES = 4
# This share of the rows is short, or is in small batches.
CHANGED_SHARE = 0.5
# Trainings with small batches have this many times as many steps.
STEPS_FACTOR = NUM_SMALL_BATCHES * CHANGED_SHARE + 1 - CHANGED_SHARE
# Shares of the tokens.
MORE_MASKED_SHARE = 0.30
MASKED_SHARE = 0.15
# One batch of this many is learned in the other way, causal or masked.
OTHER_WAY_EVERY = 16
NUM_BIGRAMS = 16_384
# The hash of a pair of tokens multiplies their ids by two odd numbers.
HASH_OF_TOKEN = 31
HASH_OF_TOKEN_BEFORE = 92_821
IGNORED = -100


def zero_outputs(model: PreTrainedModel) -> None:
    """Every branch is initialised as zero, so that a new model with norms before the branches
    returns its embeddings (Zhang et al. 2019, arXiv:1901.09321)."""
    for module in model.modules():
        if isinstance(module, RoFormerLiteAttention):
            nn.init.zeros_(module.o_proj.weight)
        elif isinstance(module, RoFormerLiteMLP):
            nn.init.zeros_(module.down_proj.weight)


def normalise_queries_and_keys(model: PreTrainedModel) -> None:
    """RMSNorm over the queries and keys of each head before the rotation (similar to Henry et al.
    2020, arXiv:2010.04245, who divide by the length and learn one factor)."""
    for attention in [
        module for module in model.modules() if isinstance(module, RoFormerLiteAttention)
    ]:
        for projection in (attention.q_proj, attention.k_proj):
            projection.register_parameter("head_norm", nn.Parameter(torch.ones(attention.head_dim)))

            projection.register_forward_hook(_normalise)


def _normalise(linear: nn.Module, given: Any, states: torch.Tensor) -> torch.Tensor:
    scale = linear.head_norm
    # The shape is (B, L, heads, head_dim).
    heads = states.unflatten(-1, (-1, len(scale)))
    return functional.rms_norm(heads, scale.shape, scale).flatten(-2)


def add_bigrams(model: PreTrainedModel) -> None:
    """Add a vector for each pair of a token and the previous token. Its row in a table is a hash of
    the pair.

    With a cache, the previous token is not known. The loss of an encoder–decoder is therefore
    correct, but its generated text is not.
    """
    for stack in [module for module in model.modules() if isinstance(module, RoFormerLiteModel)]:
        tokens = stack.embeddings.word_embeddings
        table = nn.Embedding(NUM_BIGRAMS, tokens.embedding_dim)
        nn.init.zeros_(table.weight)
        stack.embeddings.bigram_embeddings = table

        def add(
            module: nn.Module, given: tuple[torch.Tensor], states: torch.Tensor, table: Any = table
        ) -> torch.Tensor:
            (ids,) = given
            ids_before = functional.pad(ids[:, :-1], (1, 0))
            hashes = ids_before * HASH_OF_TOKEN_BEFORE + ids * HASH_OF_TOKEN
            return states + table(hashes % NUM_BIGRAMS)

        tokens.register_forward_hook(add)


def mask(first: float, last: float) -> None:
    """The share of masked tokens changes from `first` to `last` in training (Ankner et al. 2023,
    arXiv:2305.15096). In the validation data it is `--mlm_probability`."""
    usual = SeededCollator.__call__

    def on_step_begin(collator: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        collator.share_done = state.global_step / state.max_steps

    def collate(collator: Any, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        share = getattr(collator, "share_done", 0.0)
        collator.collator.mlm_probability = first + (last - first) * share
        return usual(collator, examples)

    SeededCollator.on_step_begin = on_step_begin
    SeededCollator.__call__ = collate


class Batches(Sampler[list[int]]):
    """Rows in random order, first in batches of `small`, then in batches of `size`. With
    `by_length`, the first rows are from the shorter half. No row is used twice before all have been
    used once."""

    def __init__(
        self, lengths: list[int], size: int, small: int, rows: int, seed: int, by_length: bool
    ):
        random = np.random.default_rng(seed)
        num_first = int(rows * CHANGED_SHARE)
        num_passes = math.ceil(rows / len(lengths))
        order = np.concatenate([random.permutation(len(lengths)) for _ in range(num_passes)])
        if by_length:
            is_short = np.array(lengths)[order] <= np.median(lengths)
            short = np.flatnonzero(is_short)[:num_first]
            others = random.permutation(np.delete(order, short))
            order = np.concatenate((order[short], others))
        order = order[:rows].tolist()
        self.plan = cut(order[:num_first], small) + cut(order[num_first:], size)

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.plan)


def cut(rows: list[Any], size: int) -> list[list[Any]]:
    """Cut rows into pieces of `size`. The last one may be smaller."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def plan_batches(small: bool, by_length: bool) -> None:
    """Growing batches (Smith et al. 2017, arXiv:1711.00489), or shorter rows first."""
    usual = RoFormerLiteTrainer.get_train_dataloader

    def get_train_dataloader(trainer: Any) -> DataLoader:
        loader = usual(trainer)
        size = trainer.args.per_device_train_batch_size
        first_size = size
        rows = size * trainer.args.max_steps
        if small:
            first_size = size // NUM_SMALL_BATCHES
            rows = int(rows / STEPS_FACTOR)
        lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
        batches = Batches(lengths, size, first_size, rows, trainer.args.seed, by_length)
        return DataLoader(
            trainer.train_dataset, batch_sampler=batches, collate_fn=loader.collate_fn
        )

    RoFormerLiteTrainer.get_train_dataloader = get_train_dataloader


def cut_blocks() -> None:
    """For language models: the first batches have the same number of tokens in blocks of a quarter
    of the length (Press et al. 2020, arXiv:2012.15832)."""
    usual = SeededCollator.__call__

    def on_step_begin(collator: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        collator.is_early = state.global_step < CHANGED_SHARE * state.max_steps

    def collate(collator: Any, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        if getattr(collator, "is_early", True):
            longest = max(len(row["input_ids"]) for row in examples)
            size = math.ceil(longest / NUM_SHORT_BLOCKS)
            pieces = []
            for row in examples:
                parts = zip(
                    cut(row["input_ids"], size), cut(row["attention_mask"], size), strict=True
                )
                pieces += [{"input_ids": ids, "attention_mask": mask} for ids, mask in parts]
            examples = pieces
        return usual(collator, examples)

    SeededCollator.on_step_begin = on_step_begin
    SeededCollator.__call__ = collate


def learn_both_ways() -> None:
    """A masked model learns one of sixteen batches causally, and a causal model learns one masked.

    This is similar to Charpentier & Samuel 2024, arXiv:2410.24159. They always predict masked
    tokens from the previous position; here only causal models do.
    """
    usual = RoFormerLiteTrainer.compute_loss

    def compute_loss(
        trainer: Any, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        is_other_way = trainer.state.global_step % OTHER_WAY_EVERY == OTHER_WAY_EVERY - 1
        if not (model.training and is_other_way):
            return usual(trainer, model, inputs, *args, **kwargs)
        (stack,) = model.stacks()
        was_causal = stack.is_decoder
        if was_causal:
            inputs = masked_inputs(inputs, trainer.processing_class.mask_token_id)
        else:
            inputs = causal_inputs(inputs)
        kwargs["num_items_in_batch"] = None
        _set_causal(stack, not was_causal)
        try:
            return usual(trainer, model, inputs, *args, **kwargs)
        finally:
            _set_causal(stack, was_causal)

    RoFormerLiteTrainer.compute_loss = compute_loss


def masked_inputs(inputs: dict[str, Any], mask_token_id: int) -> dict[str, Any]:
    """A causal batch with masked tokens. The causal model itself shifts the labels, so each is
    predicted from the position before it."""
    ids = inputs["input_ids"]
    labels = inputs["labels"]
    drawn = torch.rand(ids.shape, device=ids.device)
    is_masked = (drawn < MASKED_SHARE) & (labels != IGNORED)
    return {
        **inputs,
        "input_ids": ids.masked_fill(is_masked, mask_token_id),
        "labels": labels.masked_fill(~is_masked, IGNORED),
    }


def causal_inputs(inputs: dict[str, Any]) -> dict[str, Any]:
    """A batch of a masked model without masks, whose labels are the next tokens."""
    labels = inputs["labels"]
    ids = torch.where(labels == IGNORED, inputs["input_ids"], labels)
    following = functional.pad(ids[:, 1:], (0, 1), value=IGNORED)
    has_following = functional.pad(inputs["attention_mask"][:, 1:], (0, 1)) != 0
    return {
        **inputs,
        "input_ids": ids,
        "labels": following.masked_fill(~has_following, IGNORED),
    }


def _set_causal(stack: RoFormerLiteModel, is_causal: bool) -> None:
    stack.is_decoder = is_causal
    for layer in stack.layers:
        layer.self_attn.is_causal = is_causal


# These change a new model.
CHANGES_OF_MODELS: dict[str, Callable[[PreTrainedModel], None]] = {
    "zero-outputs": zero_outputs,
    "query-key-norm": normalise_queries_and_keys,
    "bigrams": add_bigrams,
}
# These change the training. `short-first` cuts the blocks of language models; for other tasks it
# takes the shorter rows first.
CHANGES_OF_TRAININGS: dict[str, Callable[[], None]] = {
    "falling-mask-ratio": lambda: mask(MORE_MASKED_SHARE, MASKED_SHARE),
    "more-masks": lambda: mask(MORE_MASKED_SHARE, MORE_MASKED_SHARE),
    "short-first": cut_blocks,
    "rising-batch": lambda: plan_batches(small=True, by_length=False),
    "both-ways": learn_both_ways,
}
# The other changes can be made in every task.
TASKS_OF_CHANGES = {
    "falling-mask-ratio": ("mlm",),
    "more-masks": ("mlm",),
    "both-ways": ("mlm", "causal"),
}
CHANGES = (*CHANGES_OF_MODELS, *CHANGES_OF_TRAININGS)


def with_more_steps(words: list[str]) -> list[str]:
    """The arguments of a command with the number of steps that small batches need for the same
    rows."""
    steps = parse_run(words[1], words[2:]).training.max_steps
    return [*words, "--max_steps", str(int(steps * STEPS_FACTOR))]


def main(name: str, words: list[str]) -> int:
    """Run `roformer-lite` with these arguments and the change `name`."""
    if name in CHANGES_OF_MODELS:
        usual = train.make_start

        def make_start(*args: Any, **kwargs: Any) -> Start:
            start = usual(*args, **kwargs)
            CHANGES_OF_MODELS[name](start.model)
            return start

        train.make_start = make_start
    elif name == "short-first" and words[1] not in ("mlm", "causal"):
        plan_batches(small=False, by_length=True)
    else:
        CHANGES_OF_TRAININGS[name]()
    if name == "rising-batch":
        words = with_more_steps(words)
    return roformer_lite(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
