"""Losses and gradients under the stock Trainer do not depend on how batches are made."""

import pytest
import torch
from conftest import VOCAB, assert_close, gradients_of
from saved_models import save_bert
from toy_training import HEADS, arguments, logged, make_batch, make_model, make_rows
from transformers import (
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    Trainer,
    TrainerState,
)

import hf_roformer_lite as rl
from roformer_lite.options.common import TrainingOptions
from roformer_lite.training.callbacks import SeededCollator
from roformer_lite.training.trainer import RoFormerLiteTrainer

LM_KINDS = ["mlm", "causal", "seq2seq"]


@pytest.fixture(scope="module")
def tokenizer() -> rl.RoFormerLiteTokenizer:
    return rl.RoFormerLiteTokenizer.train(["one line of text", "and another one"], vocab_size=300)


def trained(kind: str, out, **options) -> torch.Tensor:
    """Return the loss and the norm of the gradient of every step."""
    trainer = Trainer(make_model(kind), arguments(out, **options), train_dataset=make_rows(kind))
    trainer.train()
    return torch.tensor([logged(trainer), logged(trainer, "grad_norm")], dtype=torch.float64)


@pytest.mark.parametrize("kind", HEADS)
def test_accumulating_gradients_equals_one_batch(kind, tmp_path):
    """The Trainer also finds the labels of every head, so that it measures the loss."""
    once = trained(kind, tmp_path, max_steps=2, per_device_train_batch_size=8)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    accumulated = trained(kind, tmp_path, max_steps=2, **options)
    assert once.shape == (2, 2) and once[0, 1] < once[0, 0]
    assert_close(accumulated, once, rtol=1e-4, atol=0)
    trainer = Trainer(make_model(kind), arguments(tmp_path), eval_dataset=make_rows(kind))
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("kind", LM_KINDS)
def test_gradient_checkpointing(kind, use_reentrant):
    """The gradients are the same, and the first feed-forward runs again in the backward pass."""
    gradients = []
    forwards = []
    for checkpointed in (False, True):
        model = make_model(kind).train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        mlps = [module for name, module in model.named_modules() if name.endswith("layers.0.mlp")]
        mlps[0].register_forward_pre_hook(
            lambda *_, checkpointed=checkpointed: forwards.append(checkpointed)
        )
        model(**make_batch(kind)).loss.backward()
        gradients.append(gradients_of(model))
    assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert forwards == [False, True, True]


@pytest.mark.parametrize("kind", LM_KINDS)
def test_labelled_positions_alone_go_through_the_head(kind):
    batch = make_batch(kind)
    model = make_model(kind)
    expected = model(**batch)
    assert expected.logits.shape == (*batch["labels"].shape, VOCAB)
    seen = []
    forward = model.lm_head.forward

    def noted(states: torch.Tensor) -> torch.Tensor:
        seen.append(states.shape[:-1].numel())
        return forward(states)

    labels = batch["labels"][:, 1:] if kind == "causal" else batch["labels"]
    model.train()
    model.lm_head.forward = noted
    assert_close(model(**batch).loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert seen == [int((labels != -100).sum())]
    del model.lm_head.forward
    logits = expected.logits[:, :-1] if kind == "causal" else expected.logits
    by_torch = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1
    )
    assert_close(model(**batch, smoothing=0.1).loss, by_torch, rtol=1e-5, atol=1e-6)
    nothing = {**batch, "labels": torch.full_like(batch["labels"], -100)}
    assert model(**nothing).loss == 0 and model.eval()(**nothing).loss == 0
    # The Trainer leaves a batch whose loss is not a number out of an evaluation.
    with torch.no_grad():
        assert model(**nothing).loss.isnan()


def test_shift_labels_are_taken_as_they_are():
    batch = make_batch("causal")
    model = make_model("causal")
    shifted = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    assert_close(model(**inputs, shift_labels=shifted).loss, model(**batch).loss)


@pytest.mark.parametrize(
    ("kind", "told"), [("mlm", "position_ids"), ("causal", "flash_attn_kwargs")]
)
def test_flattened_batches_equal_padded_ones(kind, told, tokenizer):
    """Collators of transformers join rows of real tokens, or pad them."""
    rows = []
    for row in make_rows(kind):
        real = row["attention_mask"].bool()
        rows.append({key: row[key][real].tolist() for key in ("input_ids", "labels")})
        rows[-1]["labels"][0] = -100
    flattening = DataCollatorWithFlattening(**{f"return_{told}": True, "return_seq_idx": True})
    model = make_model(kind).train()
    found = []
    for collator in (DataCollatorForSeq2Seq(tokenizer), flattening):
        batch = collator(rows)
        assert len(batch["input_ids"]) == (1 if collator is flattening else 8)
        loss = model(**batch).loss
        gradients = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
        found.append([loss, *gradients])
    assert_close(*found, rtol=1e-5)


def test_masks_are_drawn_anew_in_each_epoch_and_the_same_again(tokenizer):
    """The masks do not depend on earlier draws, so that a training can be continued."""
    masks = SeededCollator(DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3), seed=1)
    rows = [{"input_ids": list(range(5, 45))}] * 4

    def labels_of(epoch: float) -> list[list[int]]:
        masks.on_epoch_begin(None, TrainerState(epoch=epoch), None)
        return masks(rows)["labels"].tolist()

    first = labels_of(0)
    assert labels_of(1) != first == labels_of(0)


def test_stock_models_accumulate_the_mean_of_their_batches(tmp_path):
    """The class of BERT ignores the number of labels of all batches, which the Trainer passes."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    start = save_bert(tmp_path / "m", "abcdefgh", BertForSequenceClassification, **no_dropout)
    rows = [
        {"input_ids": torch.arange(5) + number, "labels": torch.tensor(number % 2)}
        for number in range(8)
    ]
    found = []
    for size, steps in ((8, 1), (2, 4)):
        model = BertForSequenceClassification.from_pretrained(start)
        batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        options = arguments(tmp_path, max_steps=2, **batches)
        own = {"options": TrainingOptions(output_dir="m"), "lengths": ()}
        trainer = RoFormerLiteTrainer(model, options, train_dataset=rows, **own)
        trainer.train()
        found.append([*logged(trainer), *logged(trainer, "grad_norm")])
    assert found[0] == pytest.approx(found[1], rel=1e-4)
