"""Training from a checkpoint of transformers gives the losses and the files of stock training."""

import csv
import json
import shutil
import subprocess
import sys
from logging import Logger
from pathlib import Path

import pytest
import torch
import transformers
from conftest import build, seq2seq_config
from transformers import Seq2SeqTrainingArguments

from hf_roformer_lite import RoFormerLiteForConditionalGeneration, RoFormerLiteTokenizer
from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.recipes import RECIPES
from roformer_lite.training.tokenizers import set_up_tokenizer

WORDS = "a fine film far too long dull from end to this was the best worst and of all with cast plot".split()
VOCABULARY = {"vocab_size": 5 + len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LABELS = ["bad", "fair", "good"]
STEPS = 20
SHORT = ["--max_steps", "1"]
COMMON = "--disable_tqdm true --use_cpu true --training_arguments save_strategy=no".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with labelled rows of uneven lengths, other data, and a model `bert`."""
    folder = tmp_path_factory.mktemp("start")
    draw = torch.Generator().manual_seed(0)
    with open(folder / "rows.csv", "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for row in range(80):
            length = 1 + int(torch.randint(12, (), generator=draw))
            numbers = torch.randint(len(WORDS), (length,), generator=draw).tolist()
            rows.writerow([" ".join(WORDS[number] for number in numbers), LABELS[row % 3]])
    (folder / "tags.iob2").write_text("Anna B-PER\nin O\nRome B-LOC\n\n" * 20, "utf-8")
    (folder / "text.txt").write_text("a fine film from end to end\n" * 40, "utf-8")
    (folder / "pairs.csv").write_text(
        "anchor,positive\n" + "a fine film,the best film\n" * 16, "utf-8"
    )
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", "utf-8")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder / "tokenizer")
    torch.manual_seed(1)
    save(transformers.BertModel(bert_config()), folder, "bert")
    return folder


def save(model, folder: Path, name: str) -> Path:
    shutil.copytree(folder / "tokenizer", folder / name)
    model.save_pretrained(folder / name)
    return folder / name


def bert_config() -> transformers.BertConfig:
    labels = {
        "id2label": dict(enumerate(LABELS)),
        "label2id": {label: i for i, label in enumerate(LABELS)},
    }
    return transformers.BertConfig(
        vocab_size=5 + len(WORDS), initializer_range=0.2, **SIZES, **NO_DROPOUT, **labels
    )


def train(task: str, out: Path, data: Path, start: Path | None, *options: str | Path | int) -> dict:
    """Run `train` and return its results."""
    given = ["--model_name_or_path", start] if start else []
    typed = ["train", task, "--train_file", data, *given, *options, *COMMON, "--output_dir", out]
    assert main([str(option) for option in typed]) == 0
    return json.loads((out / "results.json").read_text("utf-8"))


def config_of(directory: Path) -> dict:
    return json.loads((directory / "config.json").read_text("utf-8"))


def stock_losses(directory: Path, rows: Path, tmp_path: Path, **options) -> list[float]:
    """Return the losses of the stock Trainer, in a script as users of transformers write it."""
    transformers.set_seed(42)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.BertForSequenceClassification.from_pretrained(directory, num_labels=3)
    with open(rows, encoding="utf-8", newline="") as file:
        data = [
            {**tokenizer(row["text"]), "labels": LABELS.index(row["label"])}
            for row in csv.DictReader(file)
        ]
    args = transformers.TrainingArguments(
        str(tmp_path / "stock"),
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        **options,
    )
    trainer = transformers.Trainer(
        model,
        args,
        train_dataset=data,
        data_collator=transformers.DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_same_losses_as_the_stock_class(folder, tmp_path, capsys):
    """Both make twenty steps without dropout, on the same batches and from the same head."""
    torch.manual_seed(1)
    directory = save(
        transformers.BertForSequenceClassification(bert_config()), folder, "classifier"
    )
    options = {
        "learning_rate": 1e-3,
        "max_steps": STEPS,
        "per_device_train_batch_size": 8,
        "warmup_steps": 0.1,
        "weight_decay": 0.01,
        "logging_steps": 1,
        "seed": 42,
    }
    expected = stock_losses(directory, folder / "rows.csv", tmp_path, **options)
    typed = [f"--{name}={value}" for name, value in options.items() if name != "logging_steps"]
    typed += ["--keep_checkpoints", "--training_arguments", "logging_steps=1"]
    train("classify", tmp_path / "ours", folder / "rows.csv", directory, *typed)
    (state,) = (tmp_path / "ours.training").glob("checkpoint-*/trainer_state.json")
    log = json.loads(state.read_text())["log_history"]
    ours = [entry["loss"] for entry in log if "loss" in entry]
    assert "new head" not in capsys.readouterr().err
    assert config_of(tmp_path / "ours")["architectures"] == ["BertForSequenceClassification"]
    assert len(ours) == len(expected) == STEPS
    # The losses change enough to show that the model learns.
    assert max(ours) - min(ours) > 0.1
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(expected), rtol=0, atol=1e-5)


CLASSES = {
    "classify": "BertForSequenceClassification",
    "tag": "BertForTokenClassification",
    "embed": "BertModel",
}
FILES = {"classify": "rows.csv", "tag": "tags.iob2", "embed": "pairs.csv", "causal": "text.txt"}


@pytest.fixture(scope="module")
def stock(folder) -> dict[str, Path]:
    """Models that were trained from `bert` or from a decoder, for four tasks."""
    llama = save(
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **VOCABULARY)),
        folder,
        "llama",
    )
    for task, file in FILES.items():
        if task == "causal":
            start = llama
            options = ["--line_by_line", "true", "--block_size", 16]
        else:
            start = folder / "bert"
            options = []
        train(task, folder / f"of-{task}", folder / file, start, *SHORT, *options)
    return {task: folder / f"of-{task}" for task in FILES}


def test_what_comes_out_is_a_stock_model(folder, stock):
    """The class, the files, the config and the tokenizer are the ones of transformers."""
    for task, name in {**CLASSES, "causal": "LlamaForCausalLM"}.items():
        fields = config_of(stock[task])
        assert fields["architectures"] == [name] and "auto_map" not in fields
        assert not list(stock[task].glob("*.py"))
        assert "import hf_roformer_lite" not in (stock[task] / "README.md").read_text("utf-8")
        source, ours = (
            transformers.AutoTokenizer.from_pretrained(place)
            for place in (folder / "bert", stock[task])
        )
        assert source("a fine film") == ours("a fine film") and type(source) is type(ours)
    assert main(["predict", str(stock["tag"]), "--input_file", str(folder / "vocab.txt")]) == 0


@pytest.mark.slow
def test_a_process_without_this_package_gives_the_same_answers(stock, tmp_path, capsys):
    code = """
import sys
sys.modules["hf_roformer_lite"] = None
import json
from sentence_transformers import SentenceTransformer
from transformers import pipeline
classify, embed, *texts = sys.argv[1:]
labels = [answer["label"] for answer in pipeline("text-classification", classify)(texts)]
print(json.dumps([labels, SentenceTransformer(embed).encode(texts).tolist()]))
"""
    texts = ["a fine film", "far too long and dull from end to end", "best"]
    (tmp_path / "in.txt").write_text("".join(text + "\n" for text in texts), "utf-8")
    answers = []
    for task in ("classify", "embed"):
        capsys.readouterr()
        assert main(["predict", str(stock[task]), "--input_file", str(tmp_path / "in.txt")]) == 0
        answers.append(capsys.readouterr().out.splitlines())
    command = [sys.executable, "-c", code, stock["classify"], stock["embed"], *texts]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    labels, vectors = json.loads(done.stdout.splitlines()[-1])
    assert [line.split("\t")[0] for line in answers[0]] == labels
    ours = torch.tensor([json.loads(line) for line in answers[1]])
    torch.testing.assert_close(ours, torch.tensor(vectors), rtol=0, atol=1e-5)


def test_default_lengths_are_what_the_model_has_positions_for(folder, tmp_path, capsys):
    short = transformers.BertConfig(**{**bert_config().to_dict(), "max_position_embeddings": 9})
    start = save(transformers.BertModel(short), folder, "short")
    results = train("classify", tmp_path / "out", folder / "rows.csv", start, *SHORT)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert results["settings"]["max_length"] == 9 == tokenizer.model_max_length
    typed = ["train", "classify", "--train_file", str(folder / "rows.csv")]
    typed += ["--model_name_or_path", str(start)]
    assert main([*typed, "--max_length", "10", "--output_dir", str(tmp_path / "no")]) == 2
    assert "--max_length 10 is more than the model has positions for" in capsys.readouterr().err


@pytest.mark.slow
def test_defaults_of_fine_tuning(folder, tmp_path):
    """The default rate depends on the model that is trained further, and options override it."""
    rows = folder / "rows.csv"
    found = train("classify", tmp_path / "a", rows, folder / "bert", *SHORT)["training"]
    assert found["arguments"]["learning_rate"] == 1e-4 and not found["own_weights"]
    small = ["--size", "tiny", "--vocab_size", 270]
    scratch = train("mlm", tmp_path / "b", rows, None, *small, *SHORT)["training"]
    assert scratch["arguments"]["learning_rate"] == 5e-4
    own = train("classify", tmp_path / "c", rows, tmp_path / "b", *SHORT)["training"]
    assert own["arguments"]["learning_rate"] == 3e-4
    # These options ask for the values of a training from scratch.
    given = ["--learning_rate", "5e-4", "--warmup_steps", "0.06", "--num_train_epochs", "1"]
    again = train("tag", tmp_path / "d", folder / "tags.iob2", tmp_path / "c", *given)["training"]
    assert (
        again["arguments"]["learning_rate"] == 5e-4 and again["arguments"]["num_train_epochs"] == 1
    )
    assert again["own_weights"]


def test_a_head_for_a_number_is_continued(folder, tmp_path, capsys):
    """Transformers calls the number LABEL_0."""
    fields = {**bert_config().to_dict(), "id2label": {0: "LABEL_0"}, "problem_type": "regression"}
    config = transformers.BertConfig(**{**fields, "label2id": {"LABEL_0": 0}})
    start = save(transformers.BertForSequenceClassification(config), folder, "number")
    rows = [f"{word} film,{number / 10}" for number, word in enumerate(WORDS)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]) + "\n", "utf-8")
    options = ["--problem_type", "regression", "--learning_rate", 0, *SHORT]
    train("classify", tmp_path / "m", tmp_path / "a.csv", start, *options)
    assert "new head" not in capsys.readouterr().err
    auto_class = transformers.AutoModelForSequenceClassification
    old, new = (auto_class.from_pretrained(path) for path in (start, tmp_path / "m"))
    torch.testing.assert_close(new.classifier.weight, old.classifier.weight)


def test_classes_instead_of_a_number(folder, tmp_path, capsys):
    """A reranker and a regression model have one label, which a classifier cannot have."""
    config = transformers.BertConfig(**{**bert_config().to_dict(), "num_labels": 1})
    start = save(transformers.BertForSequenceClassification(config), folder, "one-number")
    rows = [f"{word} film,{'ab'[number % 2]}" for number, word in enumerate(WORDS)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]) + "\n", "utf-8")
    train("classify", tmp_path / "m", tmp_path / "a.csv", start, *SHORT)
    assert "the training starts with a new head" in capsys.readouterr().err
    saved = transformers.AutoConfig.from_pretrained(tmp_path / "m")
    assert saved.problem_type == "single_label_classification" and saved.num_labels == 2


def test_a_new_head_is_fitted_without_padding(folder, tmp_path, capsys, caplog):
    """The layers would warn if a hook made them compute padding."""
    Logger.warning_once.cache_clear()
    (tmp_path / "a.iob2").write_text("Anna B-PER\n\nAnna B-PER\nin O\nRome B-LOC\n\n" * 20)
    train("tag", tmp_path / "m", tmp_path / "a.iob2", folder / "bert", *SHORT)
    assert "the training starts with a new head" in capsys.readouterr().err
    assert "computes padding" not in caplog.text


def test_other_families(folder, tmp_path, capsys):
    """An encoder with windows and an encoder-decoder stay what they are, and compute no padding."""
    config = transformers.ModernBertConfig(
        **SIZES, **VOCABULARY, cls_token_id=2, sep_token_id=3, local_attention=4
    )
    encoder = save(transformers.ModernBertModel(config), folder, "modernbert")
    results = train("classify", tmp_path / "classes", folder / "rows.csv", encoder, *SHORT)
    assert (
        results["training"]["own_weights"] is False
        and "padding is computed" not in capsys.readouterr().err
    )
    assert config_of(tmp_path / "classes")["model_type"] == "modernbert"
    sizes = {}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_attention_heads": 2, f"{side}_layers": 1, f"{side}_ffn_dim": 48}
    pair = transformers.BartConfig(
        **VOCABULARY,
        **sizes,
        d_model=32,
        decoder_start_token_id=2,
        max_position_embeddings=64,
    )
    model = transformers.BartForConditionalGeneration(pair)
    model.generation_config.update(num_beams=3, early_stopping=True)
    bart = save(model, folder, "bart")
    options = "--source_column text --target_column label --max_source_length 32 --max_target_length 16".split()
    train("seq2seq", tmp_path / "pair", folder / "rows.csv", bart, *options, *SHORT)
    assert (
        "padding is computed" not in capsys.readouterr().err
        and config_of(tmp_path / "pair")["model_type"] == "bart"
    )
    saved = transformers.GenerationConfig.from_pretrained(tmp_path / "pair")
    assert (saved.num_beams, saved.early_stopping, saved.max_length) == (3, True, 17)


def test_a_baseline_joins_only_new_models_by_default(tmp_path):
    """A fine-tuned classifier has a baseline of its own data if the option requests it."""
    rows = ["text,label"]
    for number in range(60):
        word = ("sun", "rain")[number % 2]
        rows.append(f"{word} and word{number},{'ab'[number % 2]}")
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    command = ["train", "classify", "--train_file", str(tmp_path / "rows.csv"), "--use_cpu"]
    command += ["--num_train_epochs", "1"]
    new = ["--config", "num_hidden_layers=1", "hidden_size=32"]
    tuned = ["--model_name_or_path", str(tmp_path / "new")]
    runs = {"new": new, "tuned": tuned, "joined": [*tuned, "--join_baseline", "true"]}
    for name, options in runs.items():
        assert main([*command, *options, "--output_dir", str(tmp_path / name)]) == 0
    assert not (tmp_path / "tuned" / "baseline").exists()
    for name in ("new", "joined"):
        files = sorted(path.name for path in (tmp_path / name / "baseline").iterdir())
        assert files == ["baseline.json", "baseline.safetensors"]


def test_masks_need_a_token():
    recipe = RECIPES["mlm"](RECIPES["mlm"].options_class(dataset_name="any"))
    tokenizer = RoFormerLiteTokenizer.train(["one two three"] * 9, vocab_size=300)
    assert set_up_tokenizer(tokenizer, recipe) == (tokenizer, recipe)
    tokenizer.mask_token = None
    with pytest.raises(InputError, match="no mask token"):
        set_up_tokenizer(tokenizer, recipe)


def test_the_length_of_targets_wins_over_the_limit_of_a_checkpoint(tmp_path):
    recipe = RECIPES["seq2seq"](
        RECIPES["seq2seq"].options_class(dataset_name="any", max_target_length=20)
    )
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    model.generation_config.max_new_tokens = 3
    saved = recipe.prepare_generation(model, Seq2SeqTrainingArguments(str(tmp_path)))
    assert (saved.max_length, saved.max_new_tokens) == (21, None)


@pytest.mark.parametrize("task", ["mlm", "causal"])
def test_a_language_model_is_compared_with_its_checkpoint(task, folder, tmp_path):
    """The baseline has the metrics that `evaluate` measures, and does not change the training."""
    config = bert_config()
    if task == "mlm":
        model = transformers.BertForMaskedLM(config)
    else:
        config.is_decoder = True
        model = transformers.BertLMHeadModel(config)
    start = save(model, folder, f"language-{task}")
    text = folder / "text.txt"
    options = [
        "--test_file",
        text,
        "--validation_fraction",
        0,
        "--block_size",
        16,
        "--max_steps",
        4,
    ]
    results = train(task, tmp_path / "m", text, start, *options)
    without = train(task, tmp_path / "w", text, start, *options, "--baselines", "false")
    assert without["metrics"] == results["metrics"] and without["baselines"] == {}
    command = ["evaluate", start, "--test_file", text, "--device", "cpu", "--block_size", 16]
    assert main([*map(str, command), "--output_dir", str(tmp_path / "e")]) == 0
    expected = json.loads((tmp_path / "e" / "results.json").read_text("utf-8"))["metrics"]["test"]
    before = results["baselines"]["the checkpoint before training"]["test"]
    assert before == pytest.approx(expected, rel=1e-5)
    assert results["metrics"]["test"]["loss"] < before["loss"]


def test_a_checkpoint_with_a_new_head_is_no_baseline(folder, tmp_path):
    text = folder / "text.txt"
    results = train("mlm", tmp_path / "m", text, folder / "bert", "--test_file", text, *SHORT)
    assert results["baselines"] == {}
