"""Batches by tokens in the stock Trainer: the loss and the steps of one big batch, on any model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_close, data_beside
from tiny_models import tiny_model
from torch.nn.utils import parameters_to_vector
from torch.utils.data import IterableDataset
from toy_training import arguments, logged
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaForCausalLM,
    Trainer,
    default_data_collator,
)

from hf_roformer_lite import padding_free
from hf_roformer_lite.batches import batch_by_tokens, loss_per_label

LENGTHS, OPTIONS = data_beside(__file__).values()
BUDGET = 24
# The loss of the first two classes ignores the number of labels that the Trainer passes.
MODELS = {
    "classes": BertForSequenceClassification,
    "tokens": BertForMaskedLM,
    "causal": LlamaForCausalLM,
}


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Rows with the real tokens of `LENGTHS`, padded to one length, with uneven numbers of
    labels."""
    generator = torch.Generator().manual_seed(5)
    rows = []
    for number, length in enumerate(LENGTHS):
        ids = torch.randint(5, 90, (max(LENGTHS),), generator=generator)
        mask = (torch.arange(len(ids)) < length).long()
        labels = torch.tensor(number % 2)
        if kind != "classes":
            labels = torch.where((ids % 3 == number % 3) & (mask > 0), ids, -100)
            labels[0] = ids[0]
        rows.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return rows


class TokenBudgetTrainer(Trainer):
    """The trainer of the documentation, which also keeps its batches."""

    max_tokens = BUDGET

    def get_train_dataloader(self):
        loader = super().get_train_dataloader()
        return batch_by_tokens(loader, max_tokens=self.max_tokens, seed=self.args.seed)

    def training_step(self, model, inputs, *args):
        self.__dict__.setdefault("seen", []).append(inputs["input_ids"])
        return super().training_step(model, inputs, *args)


def trainer_of(
    kind: str, out: Path, make: Callable[..., Trainer] = TokenBudgetTrainer, **options: Any
) -> Trainer:
    model = padding_free(tiny_model("llama" if kind == "causal" else "bert", MODELS[kind]).double())
    return make(
        model,
        arguments(out, **{**OPTIONS, **options}),
        data_collator=default_data_collator,
        train_dataset=rows_of(kind),
        compute_loss_func=None if kind == "causal" else loss_per_label,
    )


def are_same(batches: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(batches, others, strict=True))


def trained(trainer: Trainer, resume: str | None = None) -> tuple[list[float], torch.Tensor]:
    trainer.train(resume_from_checkpoint=resume)
    return logged(trainer), parameters_to_vector(trainer.model.parameters()).detach()


@pytest.mark.parametrize("kind", list(MODELS))
def test_accumulated_batches_are_one_big_batch(kind, tmp_path):
    """A step that accumulates all batches of an epoch is the step of all rows at once."""
    by_tokens = trainer_of(kind, tmp_path, gradient_accumulation_steps=99, num_train_epochs=3)
    at_once = trainer_of(
        kind, tmp_path, Trainer, per_device_train_batch_size=len(LENGTHS), num_train_epochs=3
    )
    losses, weights = trained(by_tokens)
    expected_losses, expected_weights = trained(at_once)
    assert len(losses) == 3 and losses[2] < losses[0] - 1e-3
    assert losses == pytest.approx(expected_losses, rel=1e-6)
    assert_close(weights, expected_weights, atol=1e-10)
    tokens = [int((ids != 0).sum()) for ids in by_tokens.seen]
    sizes = {len(ids) for ids in by_tokens.seen}
    assert max(tokens) <= BUDGET and sum(tokens) == 3 * sum(LENGTHS) and len(sizes) > 1


def test_seed_and_epoch_determine_the_batches_also_when_a_training_goes_on(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 3}
    whole = trainer_of("tokens", tmp_path / "whole", **saving)
    losses, weights = trained(whole)
    num_batches = len(whole.get_train_dataloader())
    # The third step belongs to the second half of an epoch, and no epoch ends there.
    step = num_batches + 2 - num_batches % 2
    assert len(losses) == 3 * num_batches and step % num_batches
    again = trainer_of("tokens", tmp_path / "again", **saving)
    resumed_losses, resumed = trained(again, str(tmp_path / "whole" / f"checkpoint-{step}"))
    assert torch.equal(resumed, weights) and resumed_losses == losses
    assert are_same(again.seen, whole.seen[step:])

    epochs = [
        whole.seen[start : start + num_batches] for start in range(0, len(whole.seen), num_batches)
    ]
    assert not are_same(epochs[0], epochs[1])
    other = trainer_of("tokens", tmp_path / "other", seed=1, num_train_epochs=1)
    trained(other)
    assert not are_same(epochs[0], other.seen)


def test_the_loader_keeps_what_the_trainer_has_set(tmp_path):
    rows = [{**row, "text": "a column that no model takes"} for row in rows_of("tokens")]
    trainer = trainer_of("tokens", tmp_path, dataloader_num_workers=1, dataloader_prefetch_factor=3)
    trainer.train_dataset = rows
    loader = trainer.get_train_dataloader()
    assert loader.num_workers == 1 and loader.prefetch_factor == 3
    assert "text" not in next(iter(loader))
    flat = [{"input_ids": row["input_ids"][:5], "labels": row["labels"]} for row in rows]
    trainer.train_dataset = flat
    lengths = sorted(map(len, trainer.get_train_dataloader().batch_sampler))
    assert lengths == sorted([4] * 3)


def test_mistakes(tmp_path):
    trainer = trainer_of("tokens", tmp_path)
    trainer.max_tokens = max(LENGTHS) - 1
    with pytest.raises(ValueError, match="18 tokens is below the longest example, which has 19"):
        trainer.get_train_dataloader()

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(rows_of("tokens"))

    stream = trainer_of("tokens", tmp_path, max_steps=3)
    stream.train_dataset = Stream()
    with pytest.raises(ValueError, match="needs? a dataset with a length"):
        stream.get_train_dataloader()
