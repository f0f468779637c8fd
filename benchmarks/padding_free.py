"""`python -m benchmarks padding_free [options]`: models of transformers as they come, and with
`padding_free`.

On a CPU with sdpa; what counts is the processor's time. `--parts` chooses among:

* `families`: `encode` is the base model without gradients; `classify`, `masked lm` (15 % of the
  tokens labelled) and `causal lm` are forward, backward and AdamW. Both models begin with the same
  random weights, learn from the same batches without dropout and alternate in one process; a ratio
  is the median of those of the rounds. `difference` is the largest one of their losses over all
  steps, for `encode` of their states.
* `beside`: the same steps by other means that leave padding out: a conversion to the class of this
  project, and rows packed by transformers' DataCollatorWithFlattening, for which sdpa gets a mask
  over the whole packed row.
* `memory`: what forward and backward passes take above the model, each figure in a process of its
  own.
* `training`: a classifier of the questions of CLINC150 under the stock Trainer, with batches in
  random order and grouped by length, each training in a process of its own. Without `--checkpoint`
  it is a new BERT without dropout.
"""

import copy
import gzip
import json
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import RoFormerLiteTokenizer, padding_free
from hf_roformer_lite.conversion import convert
from hf_roformer_lite.model.configuration_roformer_lite import preset_fields

from .processes import peak_while_running, python
from .report import machine, save
from .timing import alternate
from .workload import PAD, Batch, Workload, inner_width_of_gated, make_batches

Row = dict[str, Any]  # of a table
NAME = "padding_free"
LABELS = 8
ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "electra",
    "modernbert",
    "nomic_bert",
    "eurobert",
)
DECODERS = ("llama", "qwen3", "gpt2", "gpt_neox")
GATED = ("modernbert", "nomic_bert", "eurobert", "llama", "qwen3")
CLASSES = {"encode": "AutoModel", "classify": "AutoModelForSequenceClassification"}
CLASSES |= {"masked lm": "AutoModelForMaskedLM", "causal lm": "AutoModelForCausalLM"}
PARTS = ("families", "beside", "memory", "training")
# for the parts `beside` and `memory`
SOME = (("bert", "classify"), ("bert", "masked lm"), ("llama", "causal lm"))
# as a Workload calls them
ORDERS: dict[str, Any] = {"random": "real", "grouped": "sorted", "full": "full"}
POOL = 50  # batches that are sorted together by length, as in the Trainer's LengthGroupedSampler
# Tokens of the 23,279 paragraphs of 17 English books (the Gutenberg selection of NLTK) in a
# WordPiece vocabulary of 30,522, as quantiles: the least, every twentieth part, and a figure that
# stands for the longest.
PARAGRAPHS = (
    4.0,
    7,
    11,
    15,
    18,
    22,
    26,
    30,
    33,
    38,
    43,
    49,
    57,
    65,
    76,
    89,
    104,
    126,
    157,
    218,
    512,
)
QUESTIONS = Path(__file__).parents[2] / "shared" / "data" / "clinc150" / "data_full.json.gz"
HERE = "import json, sys; from benchmarks import padding_free as a; print(json.dumps(a.{}(*json.loads(sys.argv[1]))))"


@dataclass
class Options:
    families: list[str] = field(
        default_factory=lambda: [*ENCODERS, *DECODERS], metadata={"help": "of models"}
    )
    parts: list[str] = field(
        default_factory=lambda: [*PARTS], metadata={"help": "which of the four"}
    )
    size: str = field(default="mini", metadata={"help": "of all models: tiny, mini, small or base"})
    batch: int = field(default=16, metadata={"help": "rows of a batch"})
    seq: int = field(default=256, metadata={"help": "tokens that longer rows are cut to"})
    vocab_size: int = 30522
    rounds: int = field(
        default=3, metadata={"help": "measurements of each model, all of them alternating"}
    )
    threads: int = 1
    questions: str = field(
        default=str(QUESTIONS), metadata={"help": "data_full.json.gz of CLINC150, for `training`"}
    )
    train_rows: int = field(default=2400, metadata={"help": "questions of a training"})
    checkpoint: str | None = field(
        default=None, metadata={"help": "of a BERT and its tokenizer, for `training`"}
    )
    quick: bool = field(
        default=False, metadata={"help": "two families, tiny, to see that all of it works"}
    )
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})
    plot: Path | None = field(
        default=None, metadata={"help": "file of a plot of the steps, such as steps.svg"}
    )

    def __post_init__(self) -> None:
        if self.quick:
            self.families, self.size, self.rounds, self.vocab_size = (
                ["bert", "llama"],
                "tiny",
                1,
                500,
            )
            self.batch, self.seq, self.train_rows = 8, 64, 64
        if unknown := {*self.families, *self.parts} - {*ENCODERS, *DECODERS, *PARTS}:
            raise SystemExit(
                f"{sorted(unknown)} are none of {', '.join((*ENCODERS, *DECODERS, *PARTS))}."
            )

    def batches(self, order: str, work: str) -> list[Batch]:
        """A batch, two of those grouped by length; half as many rows where all are full, and for
        language models."""
        rows = max(
            1, self.batch // (2 if order == "full" else 1) // (2 if work.endswith(" lm") else 1)
        )
        sizes = {
            "batch": rows,
            "seq": self.seq,
            "vocab_size": self.vocab_size,
            "batches": 1 + (order == "grouped"),
        }
        return make_batches(Paragraphs(lengths=ORDERS[order], **sizes))


class Paragraphs(Workload):
    """A workload whose real lengths are those of `PARAGRAPHS`. Its batches stand for `POOL` of
    them: those with the median share of padding, and of rows that are sorted by length those at
    even distances."""

    def drawn_lengths(self, salt: int = 0) -> list[list[int]]:
        if self.lengths == "full":
            return [[self.seq] * self.batch] * self.batches
        places = (torch.arange(POOL * self.batch) + 0.5) / (POOL * self.batch)
        lengths = (
            torch.tensor(PARAGRAPHS).quantile(places).round().long().clamp(max=self.seq).tolist()
        )
        if self.lengths == "real":
            random.Random(self.seed + salt).shuffle(lengths)
        pool = [lengths[start : start + self.batch] for start in range(0, len(lengths), self.batch)]
        pool.sort(key=max if self.lengths == "sorted" else lambda rows: max(rows) / sum(rows))
        return [pool[int((number + 0.5) * POOL / self.batches)] for number in range(self.batches)]


class Job:
    """Passes of a model without gradients, or training steps, whose losses are kept."""

    def __init__(self, model: PreTrainedModel, inputs: list[dict[str, torch.Tensor]]) -> None:
        self.is_training = "labels" in inputs[0]
        self.model, self.inputs = model.train(self.is_training), inputs
        self.losses: list[float] = []
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def __call__(self) -> None:
        for inputs in self.inputs:
            with torch.set_grad_enabled(self.is_training):
                output = self.model(**inputs)
            if self.is_training:
                output.loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses.append(output.loss.item())
            else:
                self.states = output.last_hidden_state

    def difference(self, other: "Job") -> float:
        if self.is_training:
            return max(abs(one - two) for one, two in zip(self.losses, other.losses, strict=True))
        is_real = self.inputs[-1]["attention_mask"].bool()
        return (self.states - other.states)[is_real].abs().max().item()


def config_of(family: str, options: Options, num_labels: int = LABELS) -> PreTrainedConfig:
    """A config of the wanted size; a family ignores the fields of others."""
    sizes = preset_fields(options.size)
    width, heads, inner = (
        sizes[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size")
    )
    inner = inner_width_of_gated(inner) if family in GATED else inner
    sizes |= {
        "vocab_size": options.vocab_size,
        "max_position_embeddings": max(512, options.seq + 8),
    }
    sizes |= {
        "intermediate_size": inner,
        "hidden_dim": inner,
        "embedding_size": width,
        "head_dim": width // heads,
    }
    sizes |= {
        "num_key_value_heads": heads // 2 if family == "qwen3" else heads,
        "num_labels": num_labels,
    }
    # as the Trainer sets it: packed rows see each other in a stock model with a cache
    sizes |= {"use_cache": False}
    ids = {
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }
    config = AutoConfig.for_model(family, **sizes, **ids)
    for name, value in config.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
    return config


def pair_of(family: str, work: str, options: Options) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A stock model with random weights, and a padding-free copy of it."""
    torch.manual_seed(0)
    stock = getattr(transformers, CLASSES[work]).from_config(
        config_of(family, options), attn_implementation="sdpa"
    )
    padding_free(ours := copy.deepcopy(stock))
    return stock, ours


def inputs_of(order: str, work: str, options: Options) -> list[dict[str, torch.Tensor]]:
    found = []
    for batch in options.batches(order, work):
        labels = {"classify": batch.input_ids[:, 0] % LABELS, "causal lm": batch.labels()}
        labels |= {"masked lm": batch.masked_lm_labels()}
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        found.append(inputs | ({"labels": labels[work]} if work in labels else {}))
    return found


def measure(jobs: dict[str, Job], rounds: int) -> dict[str, Row]:
    """Each of the `jobs` beside the first, that of the stock model. `places`: of its batches, for
    each token."""
    stock, *others = jobs.values()
    masks = [one["attention_mask"] for one in stock.inputs]
    places = sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)
    base, *times = alternate([stock, *others], rounds)
    rows = {}
    for name, job, own in zip(list(jobs)[1:], others, times, strict=True):
        ratio = statistics.median(one / two for one, two in zip(base, own, strict=True))
        seconds = {"stock, s": statistics.median(base), "s": statistics.median(own)}
        rows[name] = {
            "places": places,
            "ratio": ratio,
            **seconds,
            "difference": stock.difference(job),
        }
    return rows


def compare_families(options: Options) -> Iterator[Row]:
    """Ratios of each family and work in each order; places and seconds are those in random
    order."""
    for family in options.families:
        for work in (
            ("encode", "causal lm") if family in DECODERS else ("encode", "classify", "masked lm")
        ):
            stock, ours = pair_of(family, work, options)
            found = {}
            for order in ORDERS:
                inputs = inputs_of(order, work, options)
                found[order] = measure(
                    {"stock": Job(stock, inputs), NAME: Job(ours, inputs)}, options.rounds
                )[NAME]
            first, worst = found["random"], max(one["difference"] for one in found.values())
            row = {"family": family, "work": work, "places": first["places"]}
            row |= {order: one["ratio"] for order, one in found.items()}
            yield row | {
                "stock, s": first["stock, s"],
                f"{NAME}, s": first["s"],
                "difference": worst,
            }


def compare_beside(options: Options) -> Iterator[Row]:
    """Other ways to leave padding out, and `padding_free` in the same rounds."""
    works = [
        (*one, order)
        for one in SOME
        if one[0] in options.families
        for order in ("random", "grouped")
    ]
    for family, work, order in works:
        stock, ours = pair_of(family, work, options)
        inputs = inputs_of(order, work, options)
        jobs = {"stock": Job(stock, inputs), NAME: Job(ours, inputs)}
        if family == "bert":
            source = {**stock.config.to_dict(), "architectures": [type(stock).__name__]}
            jobs["converted"] = Job(
                convert(family, copy.deepcopy(stock.state_dict()), source), inputs
            )
        else:
            collate = transformers.DataCollatorWithFlattening()
            rows = [
                zip(one["input_ids"], one["attention_mask"].bool(), strict=True) for one in inputs
            ]
            packed = [
                collate([{"input_ids": ids[mask].tolist()} for ids, mask in one]) for one in rows
            ]
            jobs["packed"] = Job(copy.deepcopy(stock), packed)
            jobs[f"packed, {NAME}"] = Job(copy.deepcopy(ours), packed)
        for way, found in measure(jobs, options.rounds).items():
            yield {"family": family, "work": work, "order": order, "way": way, **found}


def compare_memory(options: Options) -> Iterator[Row]:
    for family, work in SOME:
        if family in options.families:
            stock, ours = both("peak_here", options, family, work)
            yield {
                "family": family,
                "work": work,
                "stock, MiB": stock,
                f"{NAME}, MiB": ours,
                "ratio": stock / ours,
            }


def peak_here(fields: Row, family: str, work: str, number: int) -> float:
    """MiB that passes of the stock (0) or padding-free (1) model in random order take above it."""
    options = set_up(fields)
    model = pair_of(family, work, options)[number].train()
    (inputs,) = inputs_of("random", work, options)
    return peak_while_running(lambda: model(**inputs).loss.backward())["above_model_mib"]


def compare_trainings(options: Options) -> Iterator[Row]:
    if not Path(options.questions).is_file():
        print(f"No training: questions={options.questions!r} is not there.")
        return
    # one for all: training another does not give the same
    with tempfile.TemporaryDirectory() as tokenizer:
        if not options.checkpoint:
            texts = [text for text, _ in questions_of(options)[0]]
            vocabulary = RoFormerLiteTokenizer.train(
                texts, vocab_size=options.vocab_size, algorithm="wordpiece"
            )
            transformers.BertTokenizer(vocabulary.get_vocab()).save_pretrained(tokenizer)
        for order in ("random", "grouped"):
            stock, ours = both("train_here", options, order, options.checkpoint or tokenizer)
            row = {
                "order": order,
                "ratio": stock["s"] / ours["s"],
                "stock, s": stock["s"],
                f"{NAME}, s": ours["s"],
            }
            yield {**row, "stock, last loss": stock["loss"], f"{NAME}, last loss": ours["loss"]}


def questions_of(options: Options) -> tuple[list[tuple[str, str]], list[str]]:
    """The questions to train on, each with its intent, and all intents."""
    with gzip.open(options.questions, "rt", encoding="utf-8") as file:
        questions = json.load(file)["train"]
    chosen = random.Random(0).sample(questions, min(options.train_rows, len(questions)))
    return chosen, sorted({intent for _, intent in questions})


def train_here(fields: Row, order: str, tokenizer_folder: str, number: int) -> Row:
    """Train a stock (0) or padding-free (1) classifier: the processor's seconds, and the loss of
    the last quarter."""
    options = set_up(fields)
    questions, all_intents = questions_of(options)
    texts, intents = zip(*questions, strict=True)
    numbers = {intent: place for place, intent in enumerate(all_intents)}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    transformers.set_seed(0)
    classes = getattr(transformers, CLASSES["classify"])
    if options.checkpoint:
        model = classes.from_pretrained(options.checkpoint, num_labels=len(numbers))
    else:
        model = classes.from_config(config_of("bert", options, len(numbers)))
    encoded = tokenizer(list(texts), truncation=True, max_length=64)["input_ids"]
    padding_free(model, enabled=bool(number))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=32, num_train_epochs=1, learning_rate=1e-4, logging_steps=0.25,
            train_sampling_strategy="group_by_length" if order == "grouped" else "random", report_to="none",
            save_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        rows = [
            {"input_ids": ids, "labels": numbers[intent]}
            for ids, intent in zip(encoded, intents, strict=True)
        ]
        collator = transformers.DataCollatorWithPadding(tokenizer)
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, data_collator=collator)
        start = time.process_time()
        trainer.train()
    *_, loss = (float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry)
    return {"s": time.process_time() - start, "loss": loss}


def both(function: str, options: Options, *arguments: str) -> tuple[Any, ...]:
    """What `function` gives for the stock (0) and the padding-free (1) model, in a process of its
    own for each."""
    given = [[asdict(options), *arguments, number] for number in (0, 1)]
    return tuple(
        json.loads(python(HERE.format(function), json.dumps(one, default=str))) for one in given
    )


def set_up(fields: Row) -> Options:
    options = Options(**{**fields, "quick": False})  # what `quick` sets is in the other fields
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    return options


def markdown(rows: list[Row]) -> str:
    cells = [
        [value if isinstance(value, str) else f"{value:.4g}" for value in row.values()]
        for row in rows
    ]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(rows: list[Row], path: Path) -> None:
    """Bars of the ratios of each family's training step: of a classifier, or of a causal language
    model."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["work"] in ("classify", "causal lm")]
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": NAME, "font.size": 8}):
        figure = Figure(figsize=(9, 3), layout="constrained")
        axis = figure.subplots()
        for shift, order, label in (
            (-0.2, "random", "random batches"),
            (0.2, "grouped", "grouped by length"),
        ):
            bars = axis.bar(
                [n + shift for n in range(len(rows))],
                [row[order] for row in rows],
                0.38,
                label=label,
            )
            axis.bar_label(bars, fmt="%.2f", fontsize=7)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_xticks(range(len(rows)), [row["family"] for row in rows])
        axis.set_ylabel("training steps, times as fast")
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
        figure.savefig(
            path, metadata={"Date": None} if path.suffix == ".svg" else None, facecolor="white"
        )


def main(arguments: list[str]) -> None:
    parser = transformers.HfArgumentParser(
        Options, prog="python -m benchmarks padding_free", allow_abbrev=False
    )
    (given,) = parser.parse_args_into_dataclasses(arguments)
    options = set_up(asdict(given))
    sizes = {
        name: getattr(options, name) for name in ("size", "batch", "seq", "vocab_size", "rounds")
    }
    result: Row = {"task": NAME, **sizes, "machine": machine("cpu")}
    functions = compare_families, compare_beside, compare_memory, compare_trainings
    for part, compare in zip(PARTS, functions, strict=True):
        if part in options.parts:
            result[part] = list(compare(options))
        if result.get(part):
            print(f"{part}\n\n{markdown(result[part])}\n", flush=True)
    if options.out:
        save(result, options.out)
    if options.plot and result.get("families"):
        draw(result["families"], options.plot)
