"""Changes of a training that others report gains from: `python -m benchmarks.training_changes CHANGE train TASK …`.

Each is made in the process of that `roformer-lite train`, so that the program itself need not know what lost.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel

from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteAttention, RoFormerLiteMLP, RoFormerLiteModel
from roformer_lite.cli import main as roformer_lite
from roformer_lite.commands.train import parse_run
from roformer_lite.train import train
from roformer_lite.train.callbacks import SeededCollator
from roformer_lite.train.trainer import RoFormerLiteTrainerMixin

SHORT = 4  # a block becomes so many short ones
SMALL = 4  # a batch becomes so many small ones
CHANGED = 0.5  # share of the rows that come short, or in small batches
MASKED_FIRST, MASKED_LAST = 0.30, 0.15
OTHER_WAY = 16  # of so many batches one is learned the other way, causal or masked
BIGRAMS = 16_384  # rows of the table
ADDED, HASHED = 31, 92_821  # any two odd numbers


def zero_outputs(model: PreTrainedModel) -> None:
    """Every branch begins as zero, so that a new model is its embeddings (Zhang et al. 2019, arXiv:1901.09321)."""
    for module in model.modules():
        output = {RoFormerLiteAttention: "o_proj", RoFormerLiteMLP: "down_proj"}.get(type(module))
        if output:
            nn.init.zeros_(getattr(module, output).weight)


def normalise_queries_and_keys(model: PreTrainedModel) -> None:
    """RMSNorm over each head's queries and keys, before the rotation (Henry et al. 2020, arXiv:2010.04245)."""
    for attention in [module for module in model.modules() if isinstance(module, RoFormerLiteAttention)]:
        for projection in (attention.q_proj, attention.k_proj):
            projection.register_parameter("head_norm", nn.Parameter(torch.ones(attention.head_dim)))

            def normalise(linear: nn.Module, given: Any, states: torch.Tensor) -> torch.Tensor:
                scale = linear.head_norm
                heads = states.unflatten(-1, (-1, len(scale)))  # (B, L, heads, head_dim)
                return functional.rms_norm(heads, scale.shape, scale).flatten(-2)

            projection.register_forward_hook(normalise)


def add_bigrams(model: PreTrainedModel) -> None:
    """A vector of each token and the one before it, by their hash, is added to that of the token."""
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


def fewer_masks() -> None:
    """The share of masked tokens falls from 30 to 15 % (Wettig et al. 2022, arXiv:2202.08005, begin with many)."""

    usual = SeededCollator.__call__

    def on_step_begin(collator: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        collator.share_done = state.global_step / state.max_steps

    def mask(collator: Any, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        share = getattr(collator, "share_done", 0.0)
        collator.collator.mlm_probability = MASKED_FIRST + (MASKED_LAST - MASKED_FIRST) * share
        return usual(collator, examples)

    SeededCollator.on_step_begin, SeededCollator.__call__ = on_step_begin, mask


class Batches(Sampler[list[int]]):
    """The first rows of a random order in small batches, the rest in batches of `size`; both of all rows, or the first
    of the shorter half."""

    def __init__(self, lengths: list[int], size: int, small: int, rows: int, seed: int, by_length: bool):
        self.plan: list[list[int]] = []
        random = torch.Generator().manual_seed(seed)
        first = int(rows * CHANGED)
        order = torch.randperm(len(lengths), generator=random).tolist()
        if by_length:
            half = set(sorted(order, key=lambda row: lengths[row])[: len(order) // 2])
            short, other = [row for row in order if row in half], [row for row in order if row not in half]
            rest = short[first:] + other
            order = short[:first] + [rest[at] for at in torch.randperm(len(rest), generator=random).tolist()]
        order = (order * (rows // len(order) + 1))[:rows]
        for part, step in ((order[:first], small), (order[first:], size)):
            self.plan += [part[at : at + step] for at in range(0, len(part), step)]

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.plan)


def plan_batches(small: bool, by_length: bool) -> None:
    """Batches that grow, or whose first rows are short (Press et al. 2020, arXiv:2012.15832)."""
    usual = RoFormerLiteTrainerMixin.get_train_dataloader

    def get_train_dataloader(trainer: Any) -> DataLoader:
        loader, size, steps = usual(trainer), trainer.args.per_device_train_batch_size, trainer.args.max_steps
        rows = size * steps if not small else int(size * steps / (SMALL * CHANGED + 1 - CHANGED))
        lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
        batches = Batches(lengths, size, size // SMALL if small else size, rows, trainer.args.seed, by_length)
        return DataLoader(trainer.train_dataset, batch_sampler=batches, collate_fn=loader.collate_fn)

    RoFormerLiteTrainerMixin.get_train_dataloader = get_train_dataloader


def cut_blocks() -> None:
    """Language models: the first batches have the same tokens in blocks of a quarter of the length."""
    usual = SeededCollator.__call__

    def on_step_begin(collator: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        collator.is_early = state.global_step < CHANGED * state.max_steps

    def cut(collator: Any, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        if getattr(collator, "is_early", True):
            longest = -(-max(len(row["input_ids"]) for row in examples) // SHORT)
            pieces = []
            for row in examples:
                for at in range(0, len(row["input_ids"]), longest):
                    pieces.append({name: row[name][at : at + longest] for name in ("input_ids", "attention_mask")})
            examples = pieces
        return usual(collator, examples)

    SeededCollator.on_step_begin, SeededCollator.__call__ = on_step_begin, cut


def learn_both_ways() -> None:
    """One batch of sixteen is learned causally by a masked model, and masked by a causal one (Charpentier & Samuel
    2024, arXiv:2410.24159)."""
    usual = RoFormerLiteTrainerMixin.compute_loss

    def compute_loss(trainer: Any, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not model.training or trainer.state.global_step % OTHER_WAY != OTHER_WAY - 1:
            return usual(trainer, model, inputs, *args, **kwargs)
        (stack,) = model.stacks()
        was_causal = stack.is_decoder
        ids, labels = inputs["input_ids"], inputs["labels"]
        if was_causal:  # it shifts the labels itself: a masked token is predicted from the place before it
            masked = (torch.rand(ids.shape) < MASKED_LAST) & (labels != -100)
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


# Of a new model, and of the training. What is told of short rows first is cut blocks, and of pairs the shorter ones.
OF_MODELS: dict[str, Callable[[PreTrainedModel], None]] = {
    "zero-outputs": zero_outputs,
    "query-key-norm": normalise_queries_and_keys,
    "bigrams": add_bigrams,
}
OF_TRAININGS: dict[str, Callable[[], None]] = {
    "falling-mask-ratio": fewer_masks,
    "short-first": cut_blocks,
    "rising-batch": lambda: plan_batches(small=True, by_length=False),
    "both-ways": learn_both_ways,
}
OF_TASKS = {"falling-mask-ratio": ("mlm",), "both-ways": ("mlm", "causal")}  # others: of all
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
    elif name == "short-first" and words[1] == "seq2seq":
        plan_batches(small=False, by_length=True)
    else:
        OF_TRAININGS[name]()
    return roformer_lite(with_more_steps(words) if name == "rising-batch" else words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
