"""Models under the stock Trainer: accumulation, checkpointing, heads at labelled positions, compilation, export."""

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config
from toy_training import HEADS, make_model, make_rows
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments

import hf_roformer_lite as rl


@pytest.mark.parametrize("kind", HEADS)
def test_accumulating_gradients_equals_one_batch(kind, tmp_path):
    results = []
    for rows_at_once, accumulation in ((8, 1), (2, 4)):
        arguments = TrainingArguments(
            tmp_path,
            per_device_train_batch_size=rows_at_once,
            gradient_accumulation_steps=accumulation,
            max_steps=2,
            logging_steps=1,
            learning_rate=1e-3,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
        )
        trainer = Trainer(make_model(kind), arguments, train_dataset=make_rows(kind))
        trainer.train()
        results.append([(log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "loss" in log])
    once, accumulated = torch.tensor(results, dtype=torch.float64)
    assert len(once) == 2 and once[1, 0] < once[0, 0]
    torch.testing.assert_close(accumulated, once, rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", HEADS)
def test_trainer_finds_the_labels(kind, tmp_path):
    arguments = TrainingArguments(tmp_path, report_to="none", use_cpu=True, disable_tqdm=True)
    trainer = Trainer(make_model(kind), arguments, eval_dataset=make_rows(kind))
    assert trainer.label_names == (["start_positions", "end_positions"] if kind == "question" else ["labels"])
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize("kind", ["mlm", "seq2seq"])
def test_gradient_checkpointing_of_both_kinds(kind):
    batch = {key: torch.stack([row[key] for row in make_rows(kind)]) for key in make_rows(kind)[0]}
    gradients = []
    for use_reentrant in (None, True, False):
        model = make_model(kind).train()
        if use_reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        model(**batch).loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["mlm", "causal", "seq2seq"])
def test_labelled_positions_alone_go_through_the_head(kind):
    batch = {key: torch.stack([row[key] for row in make_rows(kind)]) for key in make_rows(kind)[0]}
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
    batch = {key: torch.stack([row[key] for row in make_rows("causal")]) for key in make_rows("causal")[0]}
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlm", "seq2seq"])
def test_torch_compile(kind):
    batch = {key: torch.stack([row[key] for row in make_rows(kind)]) for key in make_rows(kind)[0]}
    model = make_model(kind)
    compiled = torch.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits, rtol=0, atol=1e-5)
    expected, loss = model.train()(**batch).loss, torch.compile(model, backend="aot_eager")(**batch).loss
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ["default", "sliding", "post-sinusoidal"])
def test_torch_export_with_dynamic_shapes(name):
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=4, max=512)
    ids = torch.randint(5, VOCAB, (3, 11))
    mask = (torch.arange(11) < torch.tensor([[11], [4], [7]])).long()
    encoder = build(rl.RoFormerLiteModel, stack_config(name))
    shapes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    inputs = {"input_ids": ids, "attention_mask": mask}
    exported = torch.export.export(encoder, (), inputs, dynamic_shapes=shapes, strict=False).module()
    larger = {key: torch.cat([value, value], 1).repeat(2, 1) for key, value in inputs.items()}
    with torch.no_grad():
        for one in (inputs, larger):
            torch.testing.assert_close(exported(**one)[0], encoder(**one)[0], rtol=0, atol=1e-5)
    pair = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config(name, use_cache=False))
    inputs["decoder_input_ids"] = ids[:, :6]
    exported = torch.export.export(pair, (), inputs, strict=False).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(**inputs).logits, pair(**inputs).logits, rtol=0, atol=1e-5)
