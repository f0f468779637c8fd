"""Training from a checkpoint of transformers, in its own class: the metrics of the stock Trainer, and stock files."""

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_roformer_lite import RoFormerLiteForSequenceClassification, RoFormerLiteTokenizer
from hf_roformer_lite.conversion import find_converter
from roformer_lite.cli import main
from roformer_lite.commands.train import parse_run
from roformer_lite.train.train import train as train_command

WORDS = "a fine film far too long dull from end to this was the best worst and of all with cast plot".split()
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LABELS = ["bad", "fair", "good"]
STEPS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Rows of uneven lengths with a label each, and a tokenizer of BERT's class."""
    folder = tmp_path_factory.mktemp("start")
    draw = torch.Generator().manual_seed(0)
    with open(folder / "rows.csv", "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for row in range(80):
            length = 1 + int(torch.randint(12, (), generator=draw))
            numbers = torch.randint(len(WORDS), (length,), generator=draw).tolist()
            rows.writerow([" ".join(WORDS[number] for number in numbers), LABELS[row % 3]])
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", "utf-8")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder / "tokenizer")
    return folder


def save(model, folder: Path, name: str) -> Path:
    shutil.copytree(folder / "tokenizer", folder / name)
    model.save_pretrained(folder / name)
    return folder / name


def bert_config(**fields) -> BertConfig:
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
    return BertConfig(vocab_size=5 + len(WORDS), initializer_range=0.2, **{**SIZES, **NO_DROPOUT, **labels, **fields})


QUICK = "--max_steps 2".split()
COMMON = "--disable_tqdm true --use_cpu true --training_arguments save_strategy=no".split()


def train(task: str, out: Path, *options: str | Path | int) -> dict:
    """Run `train` and return its results."""
    assert main([str(option) for option in ["train", task, *options, *COMMON, "--output_dir", out]]) == 0
    return json.loads((out / "results.json").read_text("utf-8"))


def stock_losses(directory: Path, rows: Path, tmp_path: Path, **options) -> list[float]:
    """What the stock Trainer logs for the stock class: the script that a user of transformers would write."""
    set_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = BertForSequenceClassification.from_pretrained(directory, num_labels=3)
    with open(rows, encoding="utf-8", newline="") as file:
        data = [{**tokenizer(row["text"]), "labels": LABELS.index(row["label"])} for row in csv.DictReader(file)]
    args = TrainingArguments(
        str(tmp_path / "stock"), report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no", **options
    )
    trainer = Trainer(model, args, train_dataset=data, data_collator=DataCollatorWithPadding(tokenizer))
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_same_losses_as_the_stock_class(folder, tmp_path, capsys):
    """Twenty steps with the same batches, from the same pooler and classifier, without dropout."""
    torch.manual_seed(1)
    directory = save(BertForSequenceClassification(bert_config()), folder, "classifier")
    options = {"learning_rate": 1e-3, "max_steps": STEPS, "per_device_train_batch_size": 8, "warmup_steps": 0.1}
    options |= {"weight_decay": 0.01, "logging_steps": 1, "seed": 42}
    expected = stock_losses(directory, folder / "rows.csv", tmp_path, **options)
    typed = [f"--{name}={value}" for name, value in options.items() if name != "logging_steps"]
    typed += ["--training_arguments", "logging_steps=1"]
    start = ["--train_file", folder / "rows.csv", "--model_name_or_path", directory, "--output_dir", tmp_path / "ours"]
    run = train_command(parse_run("classify", [str(text) for text in [*start, *typed, *COMMON]]))
    ours = [entry["loss"] for entry in run.trainer.state.log_history if "loss" in entry]
    assert "new head" not in capsys.readouterr().err and isinstance(run.model, BertForSequenceClassification)
    assert len(ours) == len(expected) == STEPS
    assert max(ours) - min(ours) > 0.1  # it learns
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(expected), rtol=0, atol=1e-5)


def opened_without_this_package(directory: Path, code: str) -> str:
    """What `code` prints in a process that cannot import the package; `directory` is its first argument."""
    hidden = "import sys; sys.modules['hf_roformer_lite'] = None; directory = sys.argv[1]\n"
    command = [sys.executable, "-c", hidden + code, str(directory)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_what_comes_out_is_a_stock_model(folder, tmp_path, capsys):
    """Its class, its files and its config are those of transformers; `predict` and a stock process agree."""
    directory = save(BertModel(bert_config()), folder, "stock")
    train("classify", tmp_path / "out", "--train_file", folder / "rows.csv", "--model_name_or_path", directory, *QUICK)
    fields = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert fields["architectures"] == ["BertForSequenceClassification"] and "auto_map" not in fields
    assert "import hf_roformer_lite" not in (tmp_path / "out" / "README.md").read_text("utf-8")
    code = """
from transformers import pipeline
texts = ["a fine film", "far too long and dull from end to end", "best"]
print(*(answer["label"] for answer in pipeline("text-classification", directory)(texts)), sep="\\n")
"""
    (tmp_path / "in.txt").write_text("a fine film\nfar too long and dull from end to end\nbest\n", "utf-8")
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "out"), "--input_file", str(tmp_path / "in.txt")]) == 0
    ours = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert ours == opened_without_this_package(tmp_path / "out", code).split()


def test_new_head_begins_as_a_linear_model(folder, tmp_path):
    """Before the first step it knows more of the training data than the shares of the labels; random numbers less."""
    directory = save(BertModel(bert_config()), folder, "without-head")
    rows = ["--train_file", folder / "rows.csv", "--validation_file", folder / "rows.csv"]
    unchanged = ["--learning_rate", 0, "--weight_decay", 0, "--max_steps", 1]
    start = [*rows, "--model_name_or_path", directory, *unchanged]
    fitted = train("classify", tmp_path / "fitted", *start)["metrics"]["validation"]["loss"]
    random = train("classify", tmp_path / "random", *start, "--fit_head", "false")["metrics"]["validation"]["loss"]
    assert fitted < math.log(3) - 0.01 < random


@pytest.mark.parametrize("name", ["neobert", "roformer_v2"])
def test_classes_that_transformers_does_not_have(name, folder, tmp_path, capsys):
    """They are converted first, and then trained as models of this package, with all that these have."""
    fields = {"norm_type": "rms_norm", "use_bias": False} if name == "roformer_v2" else {}
    config = {"vocab_size": 5 + len(WORDS), **SIZES, **fields}
    architecture = "NeoBERT" if name == "neobert" else "RoFormerModel"
    model = find_converter(name).build_reference({"architectures": [architecture], **config})
    directory = save(model, folder, name)
    rows = ["--train_file", folder / "rows.csv", "--validation_file", folder / "rows.csv", *QUICK]
    typed = ["train", "classify", *rows, "--model_name_or_path", directory, "--output_dir", tmp_path / "out"]
    if name == "neobert":
        assert main([str(word) for word in typed]) == 2
        assert "roformer-lite convert" in capsys.readouterr().err
    assert main(["convert", str(directory), str(tmp_path / "ours"), "--from", name]) == 0
    train("classify", tmp_path / "out", *rows, "--model_name_or_path", tmp_path / "ours", "--text_scores", "true")
    model = RoFormerLiteForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.config.num_labels == 3


def test_masked_language_model_goes_on_from_its_own_head(folder, tmp_path, capsys):
    directory = save(BertForMaskedLM(bert_config()), folder, "masked")
    (tmp_path / "text.txt").write_text("a fine film from end to end\n" * 40, "utf-8")
    start = ["--train_file", tmp_path / "text.txt", "--model_name_or_path", directory, "--block_size", 16]
    train("mlm", tmp_path / "out", *start, "--learning_rate", 0, "--weight_decay", 0, "--max_steps", 1)
    assert "new" not in capsys.readouterr().err
    theirs, ours = (load_file(place / "model.safetensors") for place in (directory, tmp_path / "out"))
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)


def damaged(directory: Path, out: Path, change) -> Path:
    shutil.copytree(directory, out)
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_refusals(folder, tmp_path, capsys):
    directory = save(BertModel(bert_config()), folder, "refused")
    lacking = damaged(directory, tmp_path / "lacking", lambda t: t.pop("encoder.layer.1.output.dense.weight"))
    infinite = damaged(
        directory, tmp_path / "infinite", lambda t: t["encoder.layer.0.output.dense.bias"].fill_(torch.inf)
    )
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text('{"d_model": 64}')
    shutil.copytree(folder / "tokenizer", unknown, dirs_exist_ok=True)
    cases = [
        (lacking, [], "lacks bert.encoder.layer.1.output.dense.weight"),
        (infinite, [], "has NaN or infinite numbers in"),
        (unknown, [], "roformer-lite convert"),
        (
            directory,
            ["--max_length", "600"],
            "--max_length 600 is more than the model has positions for; give at most 512",
        ),
        (directory, ["--config", "num_hidden_layers=3"], "lacks bert.encoder.layer.2"),
    ]
    for name, options, message in cases:
        typed = ["train", "classify", "--train_file", folder / "rows.csv", "--model_name_or_path", name, *options]
        assert main([str(text) for text in [*typed, "--output_dir", tmp_path / "out"]]) == 2, message
        assert message in " ".join(capsys.readouterr().err.split())
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_defaults_of_fine_tuning(folder, tmp_path, capsys):
    """Rates of a converted model and of one that the command has trained, unless told otherwise; the card says so."""
    directory = save(BertModel(bert_config()), folder, "defaults")
    data = ["--train_file", folder / "rows.csv"]
    short = ["--max_steps", "1"]
    converted = train("classify", tmp_path / "a", *data, "--model_name_or_path", directory, *short)["training"]
    assert converted["arguments"]["learning_rate"] == 1e-4 and converted["arguments"]["warmup_steps"] == 0.1
    names = ["learning_rate", "num_train_epochs", "warmup_steps", "word_dropout", "ema_decay"]
    assert converted["fine_tuning_defaults"] == names
    card = (tmp_path / "a" / "README.md").read_text("utf-8")
    assert f"{', '.join(names)} were not given: they are the defaults of fine-tuning" in card
    tiny = ["--size", "tiny", "--vocab_size", "270", *short]
    scratch = train("mlm", tmp_path / "b", *data, *tiny)["training"]
    assert scratch["arguments"]["learning_rate"] == 5e-4 and not scratch["fine_tuning_defaults"]
    assert "defaults of fine-tuning" not in (tmp_path / "b" / "README.md").read_text("utf-8")
    own = train("classify", tmp_path / "c", *data, "--model_name_or_path", tmp_path / "b", *short)["training"]
    assert own["arguments"]["learning_rate"] == 3e-4
    told = ["--learning_rate", "5e-4", "--warmup_steps", "0.06", "--num_train_epochs", "1"]  # as from scratch
    again = train("tag", tmp_path / "d", *tags(tmp_path), "--model_name_or_path", tmp_path / "c", *told)["training"]
    assert again["arguments"]["learning_rate"] == 5e-4 and again["arguments"]["num_train_epochs"] == 1
    assert again["own_weights"] and again["fine_tuning_defaults"] == ["word_dropout", "ema_decay"]
    tuned = train("classify", tmp_path / "e", *data, "--model_name_or_path", tmp_path / "a", *short)["training"]
    assert tuned["arguments"]["learning_rate"] == 1e-4 and not tuned["own_weights"]


def tags(folder: Path) -> list[str | Path]:
    (folder / "tags.iob2").write_text("Anna B-PER\nin O\nRome B-LOC\n\n" * 20, "utf-8")
    return ["--train_file", folder / "tags.iob2"]


def test_tokenizer_is_that_of_the_source(folder, tmp_path):
    directory = save(BertModel(bert_config()), folder, "with-tokenizer")
    train(
        "classify",
        tmp_path / "m",
        "--train_file",
        folder / "rows.csv",
        "--model_name_or_path",
        directory,
        "--max_steps",
        1,
    )
    source, ours = (AutoTokenizer.from_pretrained(place) for place in (directory, tmp_path / "m"))
    assert source("a fine film") == ours("a fine film") and not isinstance(ours, RoFormerLiteTokenizer)


def test_other_families(folder, tmp_path, capsys):
    """An encoder with windows, and a pair, whose padding is computed; both stay what they are."""
    sizes = {**SIZES, "vocab_size": 5 + len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = ModernBertConfig(**sizes, cls_token_id=2, sep_token_id=3, local_attention=4)
    encoder = save(ModernBertModel(config), folder, "modernbert")
    rows = ["--train_file", folder / "rows.csv", *QUICK]
    results = train("classify", tmp_path / "classes", "--model_name_or_path", encoder, *rows)
    assert results["training"]["own_weights"] is False
    assert "padding is computed" not in capsys.readouterr().err
    assert model_type_of(tmp_path / "classes") == "modernbert"
    pair = BartConfig(
        **{name: sizes[name] for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")},
        **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 2},
        max_position_embeddings=64,
    )
    bart = save(BartForConditionalGeneration(pair), folder, "bart")
    columns = ["--source_column", "text", "--target_column", "label", "--max_source_length", 32]
    lengths = [*columns, "--max_target_length", 16]
    train("seq2seq", tmp_path / "pair", "--model_name_or_path", bart, *rows, *lengths)
    assert "padding is computed" in capsys.readouterr().err and model_type_of(tmp_path / "pair") == "bart"
    wrong = ["--model_name_or_path", str(bart), *map(str, rows[:2]), "--output_dir", str(tmp_path / "wrong")]
    assert main(["train", "classify", *wrong]) == 2
    assert "--model_name_or_path of train seq2seq" in capsys.readouterr().err


def model_type_of(directory: Path) -> str:
    return json.loads((directory / "config.json").read_text("utf-8"))["model_type"]


def test_tags_text_and_vectors(folder, tmp_path, capsys):
    """Tagging, causal language modelling with packed documents, and vectors, each by the stock class of its task."""
    bert = save(BertModel(bert_config()), folder, "for-tasks")
    train("tag", tmp_path / "tags", *tags(tmp_path), "--model_name_or_path", bert, *QUICK)
    assert main(["predict", str(tmp_path / "tags"), "--input_file", str(folder / "vocab.txt")]) == 0
    sizes = {**SIZES, "vocab_size": 5 + len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    llama = save(LlamaForCausalLM(LlamaConfig(**sizes)), folder, "llama")
    (tmp_path / "text.txt").write_text("a fine film from end to end\n" * 40, "utf-8")
    text = ["--train_file", tmp_path / "text.txt", "--line_by_line", "true", "--block_size", 16]
    train("causal", tmp_path / "text", *text, "--model_name_or_path", llama, "--packing", 64, *QUICK)
    (tmp_path / "pairs.csv").write_text("anchor,positive\n" + "a fine film,the best film\n" * 16, "utf-8")
    train("embed", tmp_path / "vectors", "--train_file", tmp_path / "pairs.csv", "--model_name_or_path", bert, *QUICK)
    kinds = {"tags": "bert", "text": "llama", "vectors": "bert"}
    assert {name: model_type_of(tmp_path / name) for name in kinds} == kinds
    code = """
from sentence_transformers import SentenceTransformer
print(*SentenceTransformer(directory).encode(["a fine film"])[0])
"""
    capsys.readouterr()
    (tmp_path / "in.txt").write_text("a fine film\n", "utf-8")
    assert main(["predict", str(tmp_path / "vectors"), "--input_file", str(tmp_path / "in.txt")]) == 0
    ours = torch.tensor(json.loads(capsys.readouterr().out))
    theirs = torch.tensor(
        [float(number) for number in opened_without_this_package(tmp_path / "vectors", code).split()]
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
