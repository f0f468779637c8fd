"""Training from a checkpoint of another system, converted on the way: the figures of transformers' own classes."""

import csv
import json
import math
import shutil
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
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    DataCollatorWithPadding,
    ModernBertConfig,
    ModernBertModel,
    RoFormerConfig,
    RoFormerForMaskedLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_roformer_lite import (
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteTokenizer,
)
from hf_roformer_lite.cli import main
from hf_roformer_lite.commands.train import parse_options
from hf_roformer_lite.conversion import convert_for_fine_tuning, find_converter
from hf_roformer_lite.training.train import train as train_command

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


COMMON = "--disable_tqdm true --use_cpu true --save_strategy no".split()


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
    typed = [f"--{name}={value}" for name, value in options.items()]
    start = ["--train_file", folder / "rows.csv", "--model_name_or_path", directory, "--output_dir", tmp_path / "ours"]
    run = train_command(parse_options("classify", [str(text) for text in [*start, *typed, *COMMON]]))
    ours = [entry["loss"] for entry in run.history if "loss" in entry]
    assert "new head" not in capsys.readouterr().err and len(ours) == len(expected) == STEPS
    assert max(ours) - min(ours) > 0.1  # it learns
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(expected), rtol=0, atol=1e-4)


HEADS = {"ForPreTraining": BertForPreTraining, "Model": BertModel, "ForMaskedLM": BertForMaskedLM}


@pytest.mark.parametrize("head", list(HEADS))
def test_what_is_taken_over_is_what_the_stock_class_takes_over(head, folder):
    """The same tensors are new, and with equal classifiers the logits and gradients are equal."""
    torch.manual_seed(2)
    directory = save(HEADS[head](bert_config()), folder, f"bert-{head}")
    stock, loaded = BertForSequenceClassification.from_pretrained(directory, num_labels=3, output_loading_info=True)
    state_dict, config = load_file(directory / "model.safetensors"), stock.config.to_dict()
    config["architectures"] = [f"Bert{head}"]
    model_class = RoFormerLiteForSequenceClassification
    model, new = convert_for_fine_tuning(find_converter("bert"), state_dict, config, model_class, {})
    names = {"bert.pooler.": "classifier.", "classifier.": "classifier.out_proj."}
    theirs = {
        ours + key.removeprefix(old)
        for key in loaded["missing_keys"]
        for old, ours in names.items()
        if key.startswith(old)
    }
    assert set(new) == theirs
    with torch.no_grad():
        model.classifier.out_proj.load_state_dict(stock.classifier.state_dict())
        if head == "ForMaskedLM":  # without a pooler
            model.classifier.dense.load_state_dict(stock.bert.pooler.dense.state_dict())
    ids = torch.randint(5, 20, (4, 9), generator=torch.Generator().manual_seed(0))
    outputs = [each(ids, labels=torch.tensor([0, 1, 2, 0])) for each in (model.train(), stock.train())]
    torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=0, atol=1e-5)
    for output in outputs:
        output.loss.backward()
    ours, theirs = model.classifier.dense.weight.grad, stock.bert.pooler.dense.weight.grad
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_new_head_begins_as_a_linear_model(folder, tmp_path):
    """Before the first step it knows more of the training data than the shares of the labels; random numbers less."""
    directory = save(BertModel(bert_config()), folder, "without-head")
    rows = ["--train_file", folder / "rows.csv", "--validation_file", folder / "rows.csv"]
    unchanged = ["--learning_rate", 0, "--weight_decay", 0, "--max_steps", 1]
    start = [*rows, "--model_name_or_path", directory, *unchanged]
    fitted = train("classify", tmp_path / "fitted", *start)["metrics"]["validation"]["loss"]
    random = train("classify", tmp_path / "random", *start, "--fit_head", "false")["metrics"]["validation"]["loss"]
    assert fitted < math.log(3) - 0.01 < random


def test_a_converted_stack_keeps_its_pooler(folder, tmp_path):
    """The original and its converted directory start from the same classifier but for its last layer, which is new."""
    directory = save(BertModel(bert_config()), folder, "stack")
    assert main(["convert", str(directory), str(tmp_path / "converted"), "--from", "auto"]) == 0
    unchanged = ["--train_file", folder / "rows.csv", "--learning_rate", 0, "--weight_decay", 0, "--max_steps", 1]
    saved = []
    for number, start in enumerate((directory, tmp_path / "converted")):
        train("classify", tmp_path / f"out-{number}", *unchanged, "--model_name_or_path", start)
        saved.append(load_file(tmp_path / f"out-{number}" / "model.safetensors"))
    assert saved[0].keys() == saved[1].keys() and "classifier.dense.weight" in saved[0]
    for name, tensor in saved[0].items():
        assert torch.equal(tensor, saved[1][name]) or "out_proj" in name, name
    own = ["--config", "classifier_pooling=mean", "classifier_activation=null", "--model_name_or_path", start]
    train("classify", tmp_path / "mean", *unchanged, *own)
    assert "classifier.dense.weight" not in load_file(tmp_path / "mean" / "model.safetensors")


def test_a_roformer_and_its_tokenizer(folder, tmp_path, capsys):
    directory = folder / "roformer"
    config = RoFormerConfig(vocab_size=5 + len(WORDS), embedding_size=32, max_position_embeddings=64, **SIZES)
    RoFormerForMaskedLM(config).save_pretrained(directory)
    shutil.copy(folder / "vocab.txt", directory)
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "RoFormerTokenizer"}')
    start = ["--train_file", folder / "rows.csv", "--model_name_or_path", directory, "--max_length", 32]
    unchanged = ["--learning_rate", 0, "--weight_decay", 0, "--max_steps", 1]
    train("classify", tmp_path / "out", *start, *unchanged)
    assert "RoFormerForMaskedLM has no head for classify" in capsys.readouterr().err
    theirs, ours = (load_file(place / "model.safetensors") for place in (directory, tmp_path / "out"))
    table = "embeddings.word_embeddings.weight"
    assert torch.equal(theirs[f"roformer.{table}"], ours[f"model.{table}"])
    assert type(AutoTokenizer.from_pretrained(tmp_path / "out")).__name__ == "RoFormerLiteJiebaTokenizer"
    assert not list(tmp_path.glob("*/*/config.json"))  # no copy of the converted model


CLASSIFIERS_OF_OTHERS = {
    "neobert": ("NeoBERTForSequenceClassification", {}, "model.encoder.weight", "classifier.weight"),
    "roformer_v2": (
        "RoFormerForSequenceClassification",
        {"norm_type": "rms_norm", "use_bias": False},
        "roformer.embeddings.word_embeddings.weight",
        "classifier.out_proj.weight",
    ),
}


@pytest.mark.parametrize("name", CLASSIFIERS_OF_OTHERS)
def test_classes_that_transformers_does_not_have(name, folder, tmp_path, capsys):
    architecture, fields, table, output = CLASSIFIERS_OF_OTHERS[name]
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
    config = {"architectures": [architecture], "vocab_size": 5 + len(WORDS), **SIZES, **labels, **fields}
    directory = save(find_converter(name).build_reference(config), folder, name)
    start = ["--train_file", folder / "rows.csv", "--model_name_or_path", directory]
    train("classify", tmp_path / "out", *start, "--learning_rate", 0, "--weight_decay", 0, "--max_steps", 1)
    assert "new head" not in capsys.readouterr().err
    theirs, ours = (load_file(place / "model.safetensors") for place in (directory, tmp_path / "out"))
    assert torch.equal(theirs[table], ours["model.embeddings.word_embeddings.weight"])
    assert torch.equal(theirs[output], ours["classifier.out_proj.weight"])


def test_masked_language_model_goes_on_from_its_own_head(folder, tmp_path, capsys):
    directory = save(BertForMaskedLM(bert_config()), folder, "masked")
    (tmp_path / "text.txt").write_text("a fine film from end to end\n" * 40, "utf-8")
    start = ["--train_file", tmp_path / "text.txt", "--model_name_or_path", directory, "--block_size", 16]
    train("mlm", tmp_path / "out", *start, "--learning_rate", 0, "--weight_decay", 0, "--max_steps", 1)
    assert "new" not in capsys.readouterr().err
    theirs, ours = (load_file(place / "model.safetensors") for place in (directory, tmp_path / "out"))
    assert torch.equal(theirs["cls.predictions.transform.dense.weight"], ours["lm_transform.dense.weight"])
    assert torch.equal(theirs["cls.predictions.bias"], ours["lm_head.bias"])


def damaged(directory: Path, out: Path, change) -> Path:
    shutil.copytree(directory, out)
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_refusals(folder, tmp_path, capsys):
    directory = save(BertModel(bert_config()), folder, "refused")
    lacking = damaged(directory, tmp_path / "lacking", lambda t: t.pop("encoder.layer.1.output.dense.weight"))
    strange = damaged(directory, tmp_path / "strange", lambda t: t.update(other=torch.zeros(1)))
    infinite = damaged(
        directory, tmp_path / "infinite", lambda t: t["encoder.layer.0.output.dense.bias"].fill_(torch.inf)
    )
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    (unknown / "config.json").write_text('{"d_model": 64}')
    shutil.copytree(folder / "tokenizer", unknown, dirs_exist_ok=True)
    cases = [
        (lacking, [], "lacks bert.encoder.layer.1.output.dense.weight"),
        (strange, [], "has unknown bert.other"),
        (infinite, [], "has NaN or infinite numbers in"),
        (unknown, [], "--from SYSTEM`, SYSTEM being one of deeplotx,"),
        (
            directory,
            ["--max_length", "600"],
            "--max_length 600 is more than the model has positions for; give at most 512",
        ),
        (directory, ["--config", "num_hidden_layers=3", "layer_types=null"], "lacks bert.encoder.layer.2"),
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
    """An encoder with windows and a pair: `train` converts them on the way, and what it writes opens and predicts."""
    sizes = {**SIZES, "vocab_size": 5 + len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    config = ModernBertConfig(**sizes, cls_token_id=2, sep_token_id=3, local_attention=4)
    encoder = save(ModernBertModel(config), folder, "modernbert")
    rows = ["--train_file", folder / "rows.csv", "--max_steps", 2]
    results = train("classify", tmp_path / "classes", "--model_name_or_path", encoder, *rows)
    assert results["training"]["own_weights"] is False
    model = RoFormerLiteForSequenceClassification.from_pretrained(tmp_path / "classes")
    assert model.config.classifier_norm and not model.config.first_attention_norm
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
    config = RoFormerLiteForConditionalGeneration.from_pretrained(tmp_path / "pair").config
    assert config.encoder.norm_placement == "post" and config.encoder.position_embedding_type == "learned"
    wrong = ["--model_name_or_path", str(bart), *map(str, rows[:2]), "--output_dir", str(tmp_path / "wrong")]
    assert main(["train", "classify", *wrong]) == 2
    assert "bart is an encoder–decoder; give it as --model_name_or_path of train seq2seq" in capsys.readouterr().err
