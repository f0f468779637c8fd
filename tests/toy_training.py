"""Tiny models, eight rows for every head, pairs of dates, and arguments of a Trainer, for the tests
of training."""

import torch
from conftest import ROOT, VOCAB, Batch, build, seq2seq_config, stack_config
from transformers import Trainer, TrainingArguments

import hf_roformer_lite as rl


def make_rows(kind: str) -> list[Batch]:
    """Eight rows of uneven lengths with uneven numbers of labels, padded to one length."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for index in range(8):
        length = 4 + index
        ids = torch.randint(5, VOCAB, (12,), generator=generator)
        mask = (torch.arange(12) < length).long()
        ids = ids * mask
        is_chosen = torch.rand(12, generator=generator) < 0.1 * (index + 2)
        labels = torch.where(is_chosen & mask.bool(), ids, -100)
        row = {"input_ids": ids, "attention_mask": mask}
        if kind == "mlm":
            row["labels"] = labels
        elif kind in ("causal", "seq2seq"):
            row["labels"] = torch.where(mask.bool(), ids, -100)
        elif kind == "token":
            row["labels"] = torch.where(labels == -100, labels, labels % 3)
        elif kind == "question":
            row |= {"start_positions": torch.tensor(1), "end_positions": torch.tensor(index % 4)}
        elif kind == "choice":
            row = {key: torch.stack([value, value.flip(0)]) for key, value in row.items()}
            row["labels"] = torch.tensor(index % 2)
        elif kind == "multi":
            row["labels"] = torch.rand(3, generator=generator).round()
        elif kind == "regression":
            row["labels"] = torch.rand((), generator=generator)
        else:
            row["labels"] = torch.tensor(index % 3)
        rows.append(row)
    return rows


def make_batch(kind: str, rows: slice = slice(None)) -> Batch:
    """All rows of `make_rows`, or some of them, as one batch."""
    chosen = make_rows(kind)[rows]
    return {key: torch.stack([row[key] for row in chosen]) for key in chosen[0]}


HEADS = {
    "mlm": (rl.RoFormerLiteForMaskedLM, {}),
    "causal": (rl.RoFormerLiteForCausalLM, {}),
    "single": (rl.RoFormerLiteForSequenceClassification, {"num_labels": 3}),
    "multi": (rl.RoFormerLiteForSequenceClassification, {"num_labels": 3}),
    "regression": (rl.RoFormerLiteForSequenceClassification, {"num_labels": 1}),
    "token": (rl.RoFormerLiteForTokenClassification, {"num_labels": 3}),
    "question": (rl.RoFormerLiteForQuestionAnswering, {}),
    "choice": (rl.RoFormerLiteForMultipleChoice, {}),
    "seq2seq": (rl.RoFormerLiteForConditionalGeneration, {}),
}


def make_model(kind: str):
    model_class, fields = HEADS[kind]
    config = seq2seq_config() if kind == "seq2seq" else stack_config(**fields)
    return build(model_class, config)


TRAINER = {
    "max_steps": 3,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
}


def arguments(out, **options) -> TrainingArguments:
    """Arguments of the stock Trainer: three steps on a CPU, all logged, and nothing is saved."""
    return TrainingArguments(out, **{**TRAINER, **options})


def logged(trainer: Trainer, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def date_lines() -> list[str]:
    """The header and 300 pairs of the sample data: a date in words, and the same in digits."""
    table = ROOT / "examples" / "data" / "dates_train.tsv"
    return table.read_text("utf-8").splitlines(keepends=True)[:301]
