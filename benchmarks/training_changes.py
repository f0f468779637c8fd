"""Changes of a training that others report gains from: `python -m benchmarks.training_changes
CHANGE train TASK …`.

Each is made in the process of that `roformer-lite train`, so that the program itself need not know
what lost.
"""

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
from roformer_lite.run import parse_run
from roformer_lite.train import train
from roformer_lite.train.callbacks import SeededCollator
from roformer_lite.train.trainer import RoFormerLiteTrainerMixin

SHORT = 4  # a block becomes so many short ones
SMALL = 4  # a batch becomes so many small ones
CHANGED = 0.5  # share of the rows that come short, or in small batches
MORE_MASKED, MASKED = 0.30, 0.15  # shares of the tokens
OTHER_WAY = 16  # of so many batches one is learned the other way, causal or masked
BIGRAMS = 16_384  # rows of the table
ADDED, HASHED = 31, 92_821  # any two odd numbers


def zero_outputs(model: PreTrainedModel) -> None:
    """Every branch begins as zero, so that a new model with norms before the branches is its
    embeddings (Zhang et al. 2019, arXiv:1901.09321)."""
    for module in model.modules():
        output = {RoFormerLiteAttention: "o_proj", RoFormerLiteMLP: "down_proj"}.get(type(module))
        if output:
            nn.init.zeros_(getattr(module, output).weight)


def normalise_queries_and_keys(model: PreTrainedModel) -> None:
    """RMSNorm over each head's queries and keys, before the rotation (after Henry et al. 2020,
    arXiv:2010.04245, who divide by the length and learn one factor)."""
    for attention in [
        module for module in model.modules() if isinstance(module, RoFormerLiteAttention)
    ]:
        for projection in (attention.q_proj, attention.k_proj):
            projection.register_parameter("head_norm", nn.Parameter(torch.ones(attention.head_dim)))

            def normalise(linear: nn.Module, given: Any, states: torch.Tensor) -> torch.Tensor:
                scale = linear.head_norm
                heads = states.unflatten(-1, (-1, len(scale)))  # (B, L, heads, head_dim)
                return functional.rms_norm(heads, scale.shape, scale).flatten(-2)

            projection.register_forward_hook(normalise)


def add_bigrams(model: PreTrainedModel) -> None:
    """A vector of each token and the one before it, by their hash, is added to that of the token.

    With a cache the token before is not known: of a pair the loss is right, and what it generates
    is not.
    """
    for stack in [module for module in model.modules() if isinstance(module, RoFormerLiteModel)]:
        tokens = stack.embeddings.word_embeddings
        table = nn.Embedding(BIGRAMS, tokens.embedding_dim)
        nn.init.zeros_(table.weight)
        stack.embeddings.bigram_embeddings = table

        def add(
            module: nn.Module, given: tuple[torch.Tensor], states: torch.Tensor, table: Any = table
        ) -> torch.Tensor:
            before = functional.pad(given[0][:, :-1], (1, 0))  # (B, L)
            return states + table((before * HASHED + given[0] * ADDED) % BIGRAMS)

        tokens.register_forward_hook(add)


def mask(first: float, last: float) -> None:
    """The share of masked tokens goes from `first` to `last` in training (Ankner et al. 2023,
    arXiv:2305.15096). The validation data have as many as `--mlm_probability` says."""
    usual = SeededCollator.__call__

    def on_step_begin(collator: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        collator.share_done = state.global_step / state.max_steps

    def collate(collator: Any, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        share = getattr(collator, "share_done", 0.0)
        collator.collator.mlm_probability = first + (last - first) * share
        return usual(collator, examples)

    SeededCollator.on_step_begin, SeededCollator.__call__ = on_step_begin, collate


class Batches(Sampler[list[int]]):
    """Rows in random order, in small batches first and then in batches of `size`; with `by_length`
    the first ones are of the shorter half. No row is taken twice before all are taken once."""

    def __init__(
        self, lengths: list[int], size: int, small: int, rows: int, seed: int, by_length: bool
    ):
        random, first = np.random.default_rng(seed), int(rows * CHANGED)
        order = np.concatenate(
            [random.permutation(len(lengths)) for _ in range(-(-rows // len(lengths)))]
        )
        if by_length:
            short = np.flatnonzero(np.array(lengths)[order] <= np.median(lengths))[:first]
            order = np.concatenate((order[short], random.permutation(np.delete(order, short))))
        self.plan: list[list[int]] = []
        for part, step in ((order[:first].tolist(), small), (order[first:rows].tolist(), size)):
            self.plan += [part[at : at + step] for at in range(0, len(part), step)]

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.plan)


def plan_batches(small: bool, by_length: bool) -> None:
    """Batches that grow (Smith et al. 2017, arXiv:1711.00489), or the shorter rows first."""
    usual = RoFormerLiteTrainerMixin.get_train_dataloader

    def get_train_dataloader(trainer: Any) -> DataLoader:
        loader, size, steps = (
            usual(trainer),
            trainer.args.per_device_train_batch_size,
            trainer.args.max_steps,
        )
        rows = size * steps if not small else int(size * steps / (SMALL * CHANGED + 1 - CHANGED))
        lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
        batches = Batches(
            lengths, size, size // SMALL if small else size, rows, trainer.args.seed, by_length
        )
        return DataLoader(
            trainer.train_dataset, batch_sampler=batches, collate_fn=loader.collate_fn
        )

    RoFormerLiteTrainerMixin.get_train_dataloader = get_train_dataloader


def cut_blocks() -> None:
    """Language models: the first batches have the same tokens in blocks of a quarter of the length
    (Press et al. 2020, arXiv:2012.15832)."""
    usual = SeededCollator.__call__

    def on_step_begin(collator: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        collator.is_early = state.global_step < CHANGED * state.max_steps

    def cut(collator: Any, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        if getattr(collator, "is_early", True):
            longest = -(-max(len(row["input_ids"]) for row in examples) // SHORT)
            pieces = []
            for row in examples:
                for at in range(0, len(row["input_ids"]), longest):
                    pieces.append(
                        {
                            name: row[name][at : at + longest]
                            for name in ("input_ids", "attention_mask")
                        }
                    )
            examples = pieces
        return usual(collator, examples)

    SeededCollator.on_step_begin, SeededCollator.__call__ = on_step_begin, cut


def learn_both_ways() -> None:
    """One batch of sixteen is learned causally by a masked model, and masked by a causal one.

    After Charpentier & Samuel 2024, arXiv:2410.24159. Their masked tokens are predicted from the
    place before, which is so here in causal models alone.
    """
    usual = RoFormerLiteTrainerMixin.compute_loss

    def compute_loss(
        trainer: Any, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if not model.training or trainer.state.global_step % OTHER_WAY != OTHER_WAY - 1:
            return usual(trainer, model, inputs, *args, **kwargs)
        (stack,) = model.stacks()
        was_causal = stack.is_decoder
        ids, labels = inputs["input_ids"], inputs["labels"]
        # it shifts the labels itself: a masked token is predicted from the place before it
        if was_causal:
            masked = (torch.rand(ids.shape, device=ids.device) < MASKED) & (labels != -100)
            inputs = {
                **inputs,
                "input_ids": ids.masked_fill(masked, trainer.processing_class.mask_token_id),
                "labels": labels.masked_fill(~masked, -100),
            }
        else:
            ids = torch.where(labels == -100, ids, labels)
            following = functional.pad(ids[:, 1:], (0, 1), value=-100)
            real = functional.pad(inputs["attention_mask"][:, 1:], (0, 1)) != 0
            inputs = {**inputs, "input_ids": ids, "labels": following.masked_fill(~real, -100)}
        kwargs["num_items_in_batch"] = None
        _set_causal(stack, not was_causal)
        try:
            return usual(trainer, model, inputs, *args, **kwargs)
        finally:
            _set_causal(stack, was_causal)

    RoFormerLiteTrainerMixin.compute_loss = compute_loss


def _set_causal(stack: RoFormerLiteModel, is_causal: bool) -> None:
    stack.is_decoder = is_causal
    for layer in stack.layers:
        layer.self_attn.is_causal = is_causal


# Of a new model, and of the training. `short-first` cuts the blocks of language models; of other
# tasks it takes the shorter rows first.
OF_MODELS: dict[str, Callable[[PreTrainedModel], None]] = {
    "zero-outputs": zero_outputs,
    "query-key-norm": normalise_queries_and_keys,
    "bigrams": add_bigrams,
}
OF_TRAININGS: dict[str, Callable[[], None]] = {
    "falling-mask-ratio": lambda: mask(MORE_MASKED, MASKED),
    "more-masks": lambda: mask(MORE_MASKED, MORE_MASKED),
    "short-first": cut_blocks,
    "rising-batch": lambda: plan_batches(small=True, by_length=False),
    "both-ways": learn_both_ways,
}
# others: of all
OF_TASKS = {"falling-mask-ratio": ("mlm",), "more-masks": ("mlm",), "both-ways": ("mlm", "causal")}
CHANGES = (*OF_MODELS, *OF_TRAININGS)


def with_more_steps(words: list[str]) -> list[str]:
    """The words of a command with as many more steps as small batches need for the same rows."""
    steps = parse_run(words[1], words[2:]).training.max_steps
    return [*words, "--max_steps", str(int(steps * (SMALL * CHANGED + 1 - CHANGED)))]


def main(name: str, words: list[str]) -> int:
    """Run `roformer-lite` with these words, changed by `name`."""
    if name in OF_MODELS:
        usual = train.make_model

        def make_model(*args: Any, **kwargs: Any) -> PreTrainedModel:
            model = usual(*args, **kwargs)
            OF_MODELS[name](model)
            return model

        train.make_model = make_model
    elif name == "short-first" and words[1] not in ("mlm", "causal"):
        plan_batches(small=False, by_length=True)
    else:
        OF_TRAININGS[name]()
    return roformer_lite(with_more_steps(words) if name == "rising-batch" else words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
