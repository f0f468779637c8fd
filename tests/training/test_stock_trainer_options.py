"""Options of the stock Trainer that change how it trains, each with the models that it applies to."""

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from torch.nn import functional as F
from toy_training import make_model, make_rows
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import hf_roformer_lite as rl

LM_KINDS = ["mlm", "causal", "seq2seq"]


@pytest.fixture(scope="module")
def tokenizer() -> rl.RoFormerLiteTokenizer:
    return rl.RoFormerLiteTokenizer.train(["one line of text", "and another one"], vocab_size=300)


def arguments(out, kind: type[TrainingArguments] = TrainingArguments, **options) -> TrainingArguments:
    defaults = {"max_steps": 3, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no"}
    defaults |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    return kind(out, **{**defaults, **options})


def logged(trainer: Trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def stacked(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def without_padding(rows: list[dict[str, torch.Tensor]], first_label: int | None = None) -> list[dict]:
    """The rows as lists of their real tokens; collators pad them again."""
    found = []
    for row in rows:
        real = row["attention_mask"].bool()
        found.append({key: row[key][real].tolist() for key in ("input_ids", "labels")})
        if first_label is not None:
            found[-1]["labels"][0] = first_label
    return found


def test_sampling_by_length(tmp_path, tokenizer):
    rows = [{"input_ids": [5] * n, "labels": [5] * n} for n in torch.randperm(96).add(1).tolist()]
    spreads, seen = {}, {}
    for strategy in ("random", "group_by_length", "batch_rebalance"):
        trainer = Trainer(
            make_model("mlm"),
            arguments(tmp_path, train_sampling_strategy=strategy, per_device_train_batch_size=4),
            train_dataset=rows,
            data_collator=DataCollatorForSeq2Seq(tokenizer),
        )
        lengths = [batch["attention_mask"].sum(1) for batch in trainer.get_train_dataloader()]
        spreads[strategy] = sum(int(batch.max() - batch.min()) for batch in lengths) / len(lengths)
        seen[strategy] = sorted(torch.cat(lengths).tolist())
        trainer.train()
        assert len(logged(trainer)) == 3
    assert spreads["group_by_length"] < 25 < 50 < spreads["random"]
    assert all(lengths == list(range(1, 97)) for lengths in seen.values())


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

    batch = stacked(rows)
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


def test_predict_with_generate(tmp_path, tokenizer):
    rows, model = without_padding(make_rows("seq2seq")), make_model("seq2seq")
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    scores = []

    def compute_metrics(prediction):
        scores.append(prediction.predictions.shape)
        return {"length": prediction.predictions.shape[1]}

    trainer = Seq2SeqTrainer(
        model,
        arguments(
            tmp_path,
            Seq2SeqTrainingArguments,
            predict_with_generate=True,
            generation_max_length=7,
            generation_num_beams=2,
            eval_strategy="epoch",
        ),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collator,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    found = trainer.predict(rows)
    inputs = collator([dict(row) for row in rows])
    source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    wanted = model.eval().generate(**source, max_length=7, num_beams=2)
    predictions = torch.as_tensor(found.predictions)
    assert torch.equal(predictions[:, : wanted.shape[1]], wanted)
    assert (predictions[:, wanted.shape[1] :] == tokenizer.pad_token_id).all()
    assert found.metrics["test_length"] == predictions.shape[1] and len(scores) > 1
    labels, batch = inputs.pop("labels"), inputs
    assert found.metrics["test_loss"] == pytest.approx(float(model(**batch, labels=labels).loss), abs=1e-5)


@pytest.mark.parametrize(
    "kind, option",
    [
        *((kind, {"gradient_checkpointing": True}) for kind in LM_KINDS),
        ("mlm", {"torch_compile": True, "torch_compile_backend": "eager"}),
        ("seq2seq", {"torch_compile": True, "torch_compile_backend": "eager"}),
    ],
)
def test_same_training_in_another_way(kind, option, tmp_path):
    runs = []
    for options in ({}, option):
        torch.compiler.reset()
        trainer = Trainer(make_model(kind), arguments(tmp_path, **options), train_dataset=make_rows(kind))
        forwards = note_forwards(trainer.model)
        trainer.train()
        runs.append(torch.tensor([logged(trainer), logged(trainer, "grad_norm")]))
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-5, atol=1e-5)
    assert runs[0][0, 2] < runs[0][0, 0]
    assert any(forwards) == ("torch_compile" in option)
    if "gradient_checkpointing" in option:
        assert len(forwards) == 2 * 3, "the first layer's feed-forward runs again in the backward pass of each step"


def note_forwards(model) -> list[bool]:
    """Of each call of a feed-forward, whether it is compiled."""
    calls: list[bool] = []
    mlp = next(module for name, module in model.named_modules() if name.endswith("layers.0.mlp"))
    mlp.register_forward_pre_hook(lambda *_: calls.append(torch.compiler.is_compiling()))  # recomputing stops inside
    return calls


@pytest.mark.parametrize("kind", LM_KINDS)
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


@pytest.mark.slow
def test_hyperparameter_search(tmp_path):
    widths = []

    def model_init(trial):
        if trial is None:
            return make_model("mlm")
        widths.append(trial.suggest_categorical("intermediate_size", [16, 64]))
        return build(rl.RoFormerLiteForMaskedLM, stack_config(intermediate_size=widths[-1]))

    trainer = Trainer(
        args=arguments(tmp_path, eval_strategy="epoch"),
        train_dataset=make_rows("mlm"),
        eval_dataset=make_rows("mlm"),
        model_init=model_init,
    )
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)},
        direction="minimize",
        backend="optuna",
        n_trials=3,
    )
    assert set(best.hyperparameters) == {"learning_rate", "intermediate_size"}
    assert len(widths) == 3 and best.hyperparameters["intermediate_size"] in widths
    trainer.args.learning_rate = best.hyperparameters["learning_rate"]
    again = build(
        rl.RoFormerLiteForMaskedLM, stack_config(intermediate_size=best.hyperparameters["intermediate_size"])
    )
    repeated = Trainer(again, trainer.args, train_dataset=make_rows("mlm"), eval_dataset=make_rows("mlm"))
    repeated.train()
    assert repeated.evaluate()["eval_loss"] == pytest.approx(best.objective, abs=1e-5)


@pytest.mark.parametrize("kind", ["mlm", "causal"])
@pytest.mark.parametrize("told", ["position_ids", "flash_attn_kwargs"])
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
