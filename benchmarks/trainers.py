"""`python -m benchmarks trainers [options]`: time common trainers on stock models and on the
same models after `padding_free`.

The cases are those of the documentation: the stock Trainer, rerankers and sentence encoders of
sentence-transformers, the trainers of TRL, and a custom loop. Models have random weights and no
dropout, so that both contenders have the same losses. They alternate in one process, and times are
processor times. Texts are random words with the lengths of paragraphs in English books (see
`padding_free.py`).
"""

import copy
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.trainer_callback import PrinterCallback

from hf_roformer_lite import padding_free

from .contenders import NUM_LABELS, SIZES, new_model
from .padding_free import FREE, STOCK
from .report import Row, difference, report, summary
from .timing import alternate
from .workload import check_known, lengths_of_texts

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LENGTH_OF_PADDED_ROWS = 512
SHORT_ROWS = (20, 65)  # The range of lengths of rows that are padded to `LENGTH_OF_PADDED_ROWS`.

Run = Callable[[], list[float]]


@dataclass
class Options:
    cases: list[str] = field(default_factory=list, metadata={"help": "Default: all of them."})
    size: str = field(default="mini", metadata={"help": f"of all models: {', '.join(SIZES)}"})
    rows: int = field(default=96, metadata={"help": "of the data of each case"})
    batch: int = 16
    seq: int = field(default=256, metadata={"help": "tokens that longer rows are cut to"})
    vocab_size: int = 8000
    rounds: int = 3
    quick: bool = field(
        default=False, metadata={"help": "tiny models and data, to see that all of it works"}
    )
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})

    def __post_init__(self) -> None:
        if self.quick:
            self.size = "tiny"
            self.rows = 8
            self.batch = 4
            self.seq = 32
            self.vocab_size = 200
            self.rounds = 1
        check_known("cases", self.cases, CASES)
        self.cases = self.cases or [*CASES]


class Setting:
    """The data and models of all cases.

    Args:
        folder: The directory for the output of trainers.
    """

    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.words = [f"w{number}" for number in range(options.vocab_size - len(SPECIAL_TOKENS))]
        self.tokenizer = self.make_tokenizer()

    def make_tokenizer(self) -> PreTrainedTokenizerFast:
        vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *self.words])}
        words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
        words.pre_tokenizer = Whitespace()
        return PreTrainedTokenizerFast(
            tokenizer_object=words,
            model_max_length=self.options.seq,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            eos_token="[SEP]",
        )

    def texts(self, seed: int = 0) -> list[str]:
        """Texts of random words, shuffled, with the distribution of the lengths of
        paragraphs."""
        generator = random.Random(seed)
        lengths = lengths_of_texts("paragraphs", self.options.rows, longest=self.options.seq)
        generator.shuffle(lengths)
        return [" ".join(generator.choices(self.words, k=length)) for length in lengths]

    def model(self, family: str, task: str, is_free: bool, **fields: Any) -> PreTrainedModel:
        """A stock model with random weights, which are the same at every call."""
        size = SIZES[self.options.size]
        model = new_model(family, task, size, self.options.vocab_size, attention=STOCK, **fields)
        return padding_free(model) if is_free else model

    def saved_model(self, family: str, task: str, **fields: Any) -> str:
        folder = self.folder / f"{family}-{task}"
        self.model(family, task, is_free=False, **fields).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return str(folder)

    def arguments(self, arguments_class: Any, **options: Any) -> Any:
        """The arguments of a trainer for one epoch without any output."""
        common = {
            "output_dir": str(self.folder / "output"),
            "per_device_train_batch_size": self.options.batch,
            "num_train_epochs": 1,
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
        }
        return arguments_class(**{**common, **options})


def losses_of(trainer: transformers.Trainer) -> list[float]:
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


# Cases


def bert_trainer(setting: Setting, is_free: bool) -> Run:
    rows = [
        {**setting.tokenizer(text, truncation=True), "labels": number % NUM_LABELS}
        for number, text in enumerate(setting.texts())
    ]

    model = setting.model("bert", "classify", is_free)

    def run() -> list[float]:
        trainer = transformers.Trainer(
            model=copy.deepcopy(model),
            args=setting.arguments(transformers.TrainingArguments),
            train_dataset=rows,
            data_collator=transformers.DataCollatorWithPadding(setting.tokenizer),
        )
        return losses_of(trainer)

    return run


def rows_padded_to_512(setting: Setting, is_free: bool) -> Run:
    """A step with short rows that the tokenizer has padded to the maximal length."""
    generator = random.Random(0)
    shortest, longest = SHORT_ROWS
    texts = [
        " ".join(generator.choices(setting.words, k=generator.randint(shortest, longest)))
        for _ in range(setting.options.batch)
    ]
    inputs = setting.tokenizer(
        texts, padding="max_length", max_length=LENGTH_OF_PADDED_ROWS, return_tensors="pt"
    )
    labels = torch.arange(len(texts)) % NUM_LABELS
    model = setting.model("modernbert", "classify", is_free).train()

    def run() -> list[float]:
        loss = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            labels=labels,
        ).loss
        loss.backward()
        return [loss.item()]

    return run


def cross_encoder_predict(setting: Setting, is_free: bool) -> Run:
    from sentence_transformers import CrossEncoder

    folder = setting.saved_model("bert", "classify", num_labels=1)
    model = padding_free(CrossEncoder(folder, device="cpu"), is_free)
    pairs = list(zip(setting.texts(seed=1), setting.texts(seed=2), strict=True))

    def run() -> list[float]:
        scores = model.predict(pairs, batch_size=setting.options.batch, show_progress_bar=False)
        return [float(score) for score in scores]

    return run


def cross_encoder_trainer(setting: Setting, is_free: bool) -> Run:
    from sentence_transformers import CrossEncoder, CrossEncoderTrainer
    from sentence_transformers.cross_encoder import CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    folder = setting.saved_model("bert", "classify", num_labels=1)
    queries = setting.texts(seed=1)
    columns = {
        "query": queries,
        "answer": setting.texts(seed=2),
        "label": [float(number % 2) for number in range(len(queries))],
    }

    model = padding_free(CrossEncoder(folder, device="cpu"), is_free)

    def run() -> list[float]:
        trained = copy.deepcopy(model)
        trainer = CrossEncoderTrainer(
            model=trained,
            args=setting.arguments(CrossEncoderTrainingArguments),
            train_dataset=Dataset.from_dict(columns),
            loss=BinaryCrossEntropyLoss(trained),
        )
        return losses_of(trainer)

    return run


def dpo_trainer(setting: Setting, is_free: bool) -> Run:
    """The outcome also contains the rewards of the preferred texts."""
    import trl

    columns = {
        "prompt": [f"{text} " for text in setting.texts(seed=1)],
        "chosen": setting.texts(seed=2),
        "rejected": setting.texts(seed=3),
    }

    model = setting.model("llama", "causal-lm", is_free)

    def run() -> list[float]:
        trainer = trl.DPOTrainer(
            model=copy.deepcopy(model),
            ref_model=copy.deepcopy(model),
            args=setting.arguments(
                trl.DPOConfig,
                bf16=False,
                gradient_checkpointing=False,
                max_length=setting.options.seq,
                learning_rate=1e-3,
            ),
            train_dataset=Dataset.from_dict(columns),
            processing_class=setting.tokenizer,
        )
        losses = losses_of(trainer)
        logs = trainer.state.log_history
        rewards = [log["rewards/chosen"] for log in logs if "rewards/chosen" in log]
        return losses + rewards

    return run


def sft(setting: Setting, is_free: bool, **options: Any) -> Run:
    import trl

    model = setting.model("llama", "causal-lm", is_free)

    def run() -> list[float]:
        trainer = trl.SFTTrainer(
            model=copy.deepcopy(model),
            args=setting.arguments(
                trl.SFTConfig,
                bf16=False,
                gradient_checkpointing=False,
                max_length=setting.options.seq,
                **options,
            ),
            train_dataset=Dataset.from_dict({"text": setting.texts()}),
            processing_class=setting.tokenizer,
        )
        return losses_of(trainer)

    return run


def sft_padded(setting: Setting, is_free: bool) -> Run:
    return sft(setting, is_free)


def flattening_collator(setting: Setting, is_free: bool) -> Run:
    """The stock Trainer with `DataCollatorWithFlattening`. Stock models separate the documents by a
    mask of all pairs."""
    ids = [setting.tokenizer(text, truncation=True)["input_ids"] for text in setting.texts()]
    rows = [{"input_ids": row, "labels": row} for row in ids]
    model = setting.model("llama", "causal-lm", is_free)

    def run() -> list[float]:
        trainer = transformers.Trainer(
            model=copy.deepcopy(model),
            args=setting.arguments(transformers.TrainingArguments),
            train_dataset=rows,
            data_collator=transformers.DataCollatorWithFlattening(),
        )
        return losses_of(trainer)

    return run


def bart_trainer(setting: Setting, is_free: bool) -> Run:
    sources = setting.tokenizer(setting.texts(seed=1), truncation=True)["input_ids"]
    targets = setting.tokenizer(setting.texts(seed=2), truncation=True)["input_ids"]
    rows = [
        {"input_ids": source, "labels": target}
        for source, target in zip(sources, targets, strict=True)
    ]
    model = setting.model("bart", "seq2seq", is_free)

    def run() -> list[float]:
        trained = copy.deepcopy(model)
        trainer = transformers.Seq2SeqTrainer(
            model=trained,
            args=setting.arguments(transformers.Seq2SeqTrainingArguments),
            train_dataset=rows,
            data_collator=transformers.DataCollatorForSeq2Seq(setting.tokenizer, model=trained),
        )
        return losses_of(trainer)

    return run


def own_loop(setting: Setting, is_free: bool) -> Run:
    """A custom head on the mean of the states of `AutoModel`."""
    texts = setting.texts()
    batches = [
        setting.tokenizer(
            texts[start : start + setting.options.batch],
            truncation=True,
            padding=True,
            return_tensors="pt",
        )
        for start in range(0, len(texts), setting.options.batch)
    ]

    model = setting.model("bert", "encoder", is_free).train()
    head = nn.Linear(model.config.hidden_size, NUM_LABELS)

    def run() -> list[float]:
        trained = copy.deepcopy(nn.ModuleList([model, head]))
        encoder, classifier = trained
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
        losses = []
        for batch in batches:
            mask = batch["attention_mask"].unsqueeze(-1)
            states = encoder(**batch).last_hidden_state
            means = (states * mask).sum(dim=1) / mask.sum(dim=1)
            labels = batch["input_ids"][:, 0] % NUM_LABELS
            loss = nn.functional.cross_entropy(classifier(means), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    return run


CASES: dict[str, Callable[[Setting, bool], Run]] = {
    "bert-trainer": bert_trainer,
    "rows-padded-to-512": rows_padded_to_512,
    "cross-encoder-predict": cross_encoder_predict,
    "cross-encoder-trainer": cross_encoder_trainer,
    "bart-trainer": bart_trainer,
    "dpo-trainer": dpo_trainer,
    "sft-trainer": sft_padded,
    "flattening-collator": flattening_collator,
    "own-loop": own_loop,
}


class Timed:
    """A run that stores its outcome."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.outcome: list[float] = []

    def __call__(self) -> None:
        self.outcome = self.run()


def compare(name: str, setting: Setting) -> Row:
    runs = {STOCK: Timed(CASES[name](setting, False)), FREE: Timed(CASES[name](setting, True))}
    times = alternate(list(runs.values()), setting.options.rounds)
    return {
        "case": name,
        "contenders": summary(dict(zip(runs, times, strict=True)), base=FREE),
        "difference": difference(runs[STOCK].outcome, runs[FREE].outcome),
    }


COLUMNS = ["case", f"{STOCK}, s", f"{FREE}, s", "speed-up", "difference"]


def cells_of(row: Row) -> list[str]:
    times = [f"{row['contenders'][name]['median_seconds']:.2f}" for name in (STOCK, FREE)]
    ratio = f"{row['contenders'][STOCK]['times']:.2f}"
    return [row["case"], *times, ratio, f"{row['difference']:.0e}"]


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(options, Path(folder))
        rows = (compare(name, setting) for name in options.cases)
        report("trainers", options, COLUMNS, rows, cells_of, unit="processor seconds")
