"""Our models under the stock Trainer and its collators: losses and gradients do not depend on how batches are made."""

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config
from torch.nn import functional as F
from toy_training import HEADS, make_batch, make_model, make_rows
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import hf_roformer_lite as rl

LM_KINDS = ["mlm", "causal", "seq2seq"]


@pytest.fixture(scope="module")
def tokenizer() -> rl.RoFormerLiteTokenizer:
    return rl.RoFormerLiteTokenizer.train(["one line of text", "and another one"], vocab_size=300)


def arguments(out, **options) -> TrainingArguments:
    defaults = {"max_steps": 3, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no"}
    defaults |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    return TrainingArguments(out, **{**defaults, **options})


def logged(trainer: Trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def trained(kind: str, out, **options) -> torch.Tensor:
    """Loss and norm of the gradient of every step."""
    trainer = Trainer(make_model(kind), arguments(out, **options), train_dataset=make_rows(kind))
    trainer.train()
    return torch.tensor([logged(trainer), logged(trainer, "grad_norm")], dtype=torch.float64)


@pytest.mark.parametrize("kind", HEADS)
def test_accumulating_gradients_equals_one_batch(kind, tmp_path):
    """Also the Trainer finds the labels of every head, so that it measures the loss."""
    once = trained(kind, tmp_path, max_steps=2, per_device_train_batch_size=8)
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    accumulated = trained(kind, tmp_path, max_steps=2, **options)
    assert once.shape == (2, 2) and once[0, 1] < once[0, 0]
    torch.testing.assert_close(accumulated, once, rtol=1e-4, atol=0)
    trainer = Trainer(make_model(kind), arguments(tmp_path), eval_dataset=make_rows(kind))
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("kind", LM_KINDS)
def test_gradient_checkpointing(kind, use_reentrant):
    """The gradients are the same, and the first feed-forward runs again in the backward pass."""
    gradients, forwards = [], []
    for checkpointed in (False, True):
        model = make_model(kind).train()
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        mlp = next(module for name, module in model.named_modules() if name.endswith("layers.0.mlp"))
        mlp.register_forward_pre_hook(lambda *_, checkpointed=checkpointed: forwards.append(checkpointed))
        model(**make_batch(kind)).loss.backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
    assert forwards == [False, True, True]


@pytest.mark.parametrize("kind", ["mlm", "causal", "seq2seq"])
def test_labelled_positions_alone_go_through_the_head(kind):
    batch = make_batch(kind)
    model = make_model(kind)
    expected = model(**batch)
    assert expected.logits.shape == (*batch["labels"].shape, VOCAB)
    seen, forward = [], model.lm_head.forward
    labels = batch["labels"][:, 1:] if kind == "causal" else batch["labels"]
    torch.testing.assert_close(model.train()(**batch).loss, expected.loss, rtol=1e-5, atol=1e-6)
    model.lm_head.forward = lambda states: seen.append(states.shape[:-1].numel()) or forward(states)
    torch.testing.assert_close(model(**batch).loss, expected.loss, rtol=1e-5, atol=1e-6)
    assert seen == [int((labels != -100).sum())]
    del model.lm_head.forward
    logits = expected.logits[:, :-1] if kind == "causal" else expected.logits
    by_torch = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(model(**batch, smoothing=0.1).loss, by_torch, rtol=1e-5, atol=1e-6)
    nothing = {**batch, "labels": torch.full_like(batch["labels"], -100)}
    assert model(**nothing).loss == 0 and model.eval()(**nothing).loss == 0


def test_shift_labels_are_taken_as_they_are():
    batch = make_batch("causal")
    model = make_model("causal")
    shifted = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    torch.testing.assert_close(model(**inputs, shift_labels=shifted).loss, model(**batch).loss)


def test_stock_collator_builds_the_decoder_input():
    model = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config())
    tokenizer = rl.RoFormerLiteTokenizer.train(["a b c d e"] * 5, vocab_size=300, show_progress=False)
    rows = [dict(tokenizer("a b c", text_target="d e")), dict(tokenizer("a", text_target="a b c d e"))]
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)(rows)
    start, end, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    assert batch["decoder_input_ids"][:, 0].tolist() == [start, start]
    assert batch["labels"][1, -1] == end and (batch["labels"][0] == -100).any()
    real = batch["labels"][0] != -100
    assert batch["decoder_input_ids"][0, 1 : real.sum()].tolist() == batch["labels"][0][real][:-1].tolist()
    assert (batch["decoder_input_ids"][0, int(real.sum()) + 1 :] == pad).all()


@pytest.mark.parametrize("kind", LM_KINDS)
def test_label_smoothing(kind, tmp_path):
    """The Trainer's loss, its formula written out, and the model's own on labelled positions alone."""
    rows, model = make_rows(kind), make_model(kind)
    if kind == "seq2seq":  # as the stock collator adds it
        for row in rows:
            row["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(row["labels"][None])[0]
    options = {"label_smoothing_factor": 0.2, "learning_rate": 0.0, "max_steps": 1}
    trainer = Trainer(model, arguments(tmp_path, **options), train_dataset=rows, eval_dataset=rows)
    trainer.train()

    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    labels = batch.pop("labels")
    with torch.no_grad():
        logits = model.eval()(**batch).logits
        if kind == "causal":
            logits, labels_of_logits = logits[:, :-1], labels[:, 1:]
        else:
            labels_of_logits = labels
        chosen = labels_of_logits != -100
        log_probabilities = logits[chosen].log_softmax(-1)
        hard = -log_probabilities.gather(1, labels_of_logits[chosen][:, None]).mean()
        wanted = 0.8 * hard - 0.2 * log_probabilities.mean()
        own = model.train()(**batch, labels=labels, smoothing=0.2)
    assert abs(wanted - hard) > 0.01
    for got in (logged(trainer)[0], float(own.loss), trainer.evaluate()["eval_loss"]):
        assert got == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("kind", ["mlm", "seq2seq"])
def test_neftune(kind, tmp_path):
    """Noise of alpha / sqrt(length * width) on the embeddings of a padded batch, in training alone."""
    model = make_model(kind)
    options = {"neftune_noise_alpha": 5.0, "learning_rate": 0.0, "max_steps": 1}
    trainer = Trainer(
        model, arguments(tmp_path, **options), train_dataset=make_rows(kind), eval_dataset=make_rows(kind)
    )
    table, noises = model.get_input_embeddings(), []

    class Watch(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):  # behind the noise's own hook
            self.hook = table.register_forward_hook(
                lambda module, args, output: noises.append(
                    (module.training, output.detach() - F.embedding(args[0], module.weight))
                )
            )

        def on_train_end(self, *args, **kwargs):
            trainer.evaluate()
            self.hook.remove()

    trainer.add_callback(Watch())
    trainer.train()
    (training, noise), (evaluating, silence) = noises
    bound = 5.0 / (12 * table.embedding_dim) ** 0.5
    assert training and noise.shape == (8, 12, table.embedding_dim)
    assert 0.9 * bound < float(noise.abs().max()) <= bound * (1 + 1e-5)
    assert not evaluating and not silence.any()
    plain = Trainer(make_model(kind), arguments(tmp_path), eval_dataset=make_rows(kind)).evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain, abs=1e-6)
    assert logged(trainer)[0] != pytest.approx(plain, abs=1e-3)


def without_padding(rows: list[dict[str, torch.Tensor]], first_label: int | None = None) -> list[dict]:
    """The rows as lists of their real tokens; collators pad them again."""
    found = []
    for row in rows:
        real = row["attention_mask"].bool()
        found.append({key: row[key][real].tolist() for key in ("input_ids", "labels")})
        if first_label is not None:
            found[-1]["labels"][0] = first_label
    return found


@pytest.mark.parametrize(("kind", "told"), [("mlm", "position_ids"), ("causal", "flash_attn_kwargs")])
def test_flattened_batches_equal_padded_ones(kind, told, tmp_path, tokenizer):
    rows = without_padding(make_rows(kind), first_label=-100)
    flattening = DataCollatorWithFlattening(**{f"return_{told}": True, "return_seq_idx": True})
    runs, shapes = [], []
    for collator in (DataCollatorForSeq2Seq(tokenizer), flattening):
        model = make_model(kind)
        model.register_forward_pre_hook(
            lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
        trainer = Trainer(
            model,
            arguments(tmp_path, per_device_train_batch_size=4),
            train_dataset=rows,
            eval_dataset=rows,
            data_collator=collator,
        )
        trainer.train()
        runs.append(torch.tensor([*logged(trainer), *logged(trainer, "grad_norm"), trainer.evaluate()["eval_loss"]]))
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-5)
    assert shapes[0][0] == 4 and shapes[-1][0] == 1 and shapes[-1][1] == sum(len(row["input_ids"]) for row in rows)


def test_flattening_beside_a_pair_is_refused_by_name(tokenizer):
    """The stock collator flattens one sequence; a pair needs the positions of both."""
    batch = DataCollatorWithFlattening()(without_padding(make_rows("seq2seq")))
    model = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config())
    with pytest.raises(ValueError, match="the decoder has 1 documents and its encoder 8"):
        model(**batch)


def test_torch_exports_a_pair():
    """Of an encoder see tests/exporting."""
    ids = torch.randint(5, VOCAB, (3, 11))
    mask = (torch.arange(11) < torch.tensor([[11], [4], [7]])).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :6]}
    pair = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config("sliding", use_cache=False))
    exported = torch.export.export(pair, (), inputs, strict=False).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(**inputs).logits, pair(**inputs).logits, rtol=0, atol=1e-5)
