"""Training from given models: heads are kept or new, and an encoder gets a decoder."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import assert_close, assert_equal, build, part_of, stack_config
from datasets import Dataset, DatasetDict
from program import (
    TINY,
    answered,
    change_fields,
    config_of,
    interrupted,
    refused,
    train,
    write_rows,
)
from safetensors.torch import load_file
from saved_models import save_bert, save_sentence_encoder
from transformers import AutoTokenizer, BertModel, PreTrainedTokenizerBase, TrainingArguments

from hf_roformer_lite import RoFormerLiteForSequenceClassification, RoFormerLiteModel
from roformer_lite.options.run import parse_run
from roformer_lite.training import stages
from roformer_lite.training.cross_validation import CrossValidation
from roformer_lite.training.defaults import with_defaults
from roformer_lite.training.few_rows import decide

TEXTS = ["a cat", "a dog", "the red house", "one small wing"]
COMMON = "--baselines false --use_cpu --training_arguments save_strategy=no eval_strategy=no"
UNCHANGED = f"{COMMON} --learning_rate 0 --weight_decay 0 --max_steps 1"


LABELS = ["cat", "cat", "thing", "thing"]


def write_labels(path: Path, labels: list[str]) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    return write_rows(path, rows * 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with texts, pairs, a classifier and an encoder."""
    folder = tmp_path_factory.mktemp("given")
    text = write_rows(folder / "text.jsonl", [{"text": text} for text in TEXTS * 10])
    pairs = [{"source": text, "target": text.upper()} for text in TEXTS * 10]
    write_rows(folder / "pairs.jsonl", pairs)
    data = write_labels(folder / "rows.jsonl", LABELS)
    learning = "--config hidden_dropout=0.0 --learning_rate 3e-3 --num_train_epochs 4"
    train(f"classify {TINY} {COMMON} {learning}", data, folder / "classifier")
    lines = f"{TINY} {COMMON} --max_steps 2 --block_size 16"
    train(f"mlm {lines}", text, folder / "encoder")
    return folder


def tensors(model: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    return part_of(load_file(model / "model.safetensors"), prefix)


def assert_same(ours: Path, theirs: Path, prefix: str = "model.") -> None:
    """Two models have the same weights with a prefix."""
    assert_equal(tensors(ours, prefix), tensors(theirs, prefix))


def test_equal_labels_keep_the_head_and_their_order(folder, tmp_path, capsys):
    # Another program may have numbered the labels in this order.
    turned = shutil.copytree(folder / "classifier", tmp_path / "turned")
    # A fine-tuned model has no baseline in its answer.
    shutil.rmtree(turned / "baseline")
    numbers = {"thing": 0, "cat": 1}
    names = {"0": "thing", "1": "cat"}
    change_fields(turned / "config.json", id2label=names, label2id=numbers)
    true = ["thing", "cat", "thing", "cat"]
    data = write_labels(tmp_path / "a.jsonl", true)
    tuned = tmp_path / "tuned"
    files = {"model_name_or_path": turned, "test_file": data}
    results = train(f"classify {UNCHANGED}", data, tuned, **files)
    assert "new head" not in capsys.readouterr().err
    assert_same(tuned, turned, prefix="")
    assert config_of(tuned)["label2id"] == numbers
    answers = answered(tuned, TEXTS)
    assert answers == answered(turned, TEXTS)
    right = [answer.split("\t")[0] for answer in answers]
    # The metrics must number the labels as the model does.
    assert results["metrics"]["test"]["accuracy"] == sum(map(str.__eq__, right, true)) / 4


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        ("yes yes no no", "", "are no, yes"),
        ("1 2 3 4", "--problem_type regression", "are value"),
    ],
    ids=["as many", "a number"],
)
def test_other_labels_get_a_new_head(folder, tmp_path, capsys, labels, options, said):
    data = write_labels(tmp_path / "a.jsonl", labels.split())
    old = folder / "classifier"
    command = f"classify {UNCHANGED} --fit_head false {options}"
    tuned = tmp_path / "m"
    train(command, data, tuned, model_name_or_path=old)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "new head" in line]
    assert said in line
    assert_same(tuned, old)
    assert tensors(tuned, "classifier.").keys() == tensors(old, "classifier.").keys()
    name = "classifier.out_proj.weight"
    new_head = tensors(tuned)[name]
    assert new_head.shape[0] == len(config_of(tuned)["label2id"])
    assert not torch.equal(new_head, tensors(old)[name])
    # The head is initialised as it is in a new model.
    assert 0 < new_head.std() < 0.1


def test_a_classifier_becomes_a_tagger(folder, tmp_path, capsys):
    """A classifier becomes a tagger, and the head of a tagger is kept for the same tags."""
    command = f"tag {UNCHANGED}"
    first = tmp_path / "first"
    row = {"tokens": ["Anna", "in", "Rome"], "tags": ["B-PER", "O", "O"]}
    data = write_rows(tmp_path / "a.jsonl", [row] * 10)
    train(command, data, first, model_name_or_path=folder / "classifier")
    assert "RoFormerLiteForSequenceClassification has no head for tag" in capsys.readouterr().err
    assert config_of(first)["label2id"] == {"O": 0, "B-PER": 1, "I-PER": 2}
    assert_same(first, folder / "classifier")
    train(command, data, tmp_path / "again", model_name_or_path=first)
    assert "new head" not in capsys.readouterr().err
    assert_same(tmp_path / "again", first, prefix="")


@pytest.fixture
def encoder(tmp_path) -> Path:
    """A sentence encoder, a BERT with a token for each letter."""
    return save_sentence_encoder(tmp_path / "encoder", "acdeghilmnorstw", pooling_mode="mean")


@pytest.fixture
def data(tmp_path) -> Path:
    return write_labels(tmp_path / "a.jsonl", LABELS)


@pytest.mark.slow
def test_rows_are_held_out_where_needed(encoder, data, tmp_path):
    """Few rows are all trained on, unless the training has epochs to choose from."""
    numbers = write_labels(tmp_path / "n.jsonl", "1 2 3 4".split())
    for rows in (data, numbers):
        # A tenth of these 120 rows would usually be held out.
        rows.write_text(rows.read_text() * 6)
    for rows, options, holds_out in (
        (data, "", False),
        (data, "--weight_decay 0.1", True),
        (numbers, "--problem_type regression", True),
    ):
        few = tmp_path / f"few{options}"
        results = train(f"classify {COMMON} {options}", rows, few, model_name_or_path=encoder)
        assert (results["training"]["steps"] > 1) == holds_out
        assert ("validation" in results["metrics"]) == holds_out
    out = tmp_path / "none"
    train(f"classify {UNCHANGED} --fit_head false", data, out, model_name_or_path=encoder)
    assert config_of(out)["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode": "cls", "include_prompt": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    ],
    ids=["cls", "mean"],
)
def test_the_head_on_a_sentence_encoder_reads_its_vectors(data, tmp_path, pooling):
    start = save_sentence_encoder(tmp_path / "start", "acdeghilmnorstw", **pooling)
    theirs = BertModel.from_pretrained(start).eval()
    tuned = tmp_path / "m"
    train(f"classify {UNCHANGED}", data, tuned, model_name_or_path=start)
    ours = RoFormerLiteForSequenceClassification.from_pretrained(tuned)
    seen = []
    ours.eval().classifier.out_proj.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0])
    )
    tokenizer = AutoTokenizer.from_pretrained(tuned)
    for text in TEXTS:
        batch = tokenizer(text, return_tensors="pt")
        states = theirs(**batch).last_hidden_state[0]
        ours(**batch)
        expected = states[0] if "cls" in pooling.values() else states.mean(0)
        assert_close(seen[-1][0], expected)


@pytest.mark.parametrize("number", [499, 500])
def test_fewer_than_500_rows_are_few(number, folder, tmp_path):
    """The rows are counted before some of them are held out."""
    words = f"--train_file {folder}/rows.jsonl --model_name_or_path {folder}/encoder"
    words += f" --output_dir {tmp_path}/m"
    run = with_defaults(parse_run("classify", words.split()))
    args = TrainingArguments(tmp_path / "arguments", use_cpu=True)
    texts = [f"text {row}" for row in range(number)]
    columns = {"text": texts, "labels": [["b"]] * number, "is_list": [False] * number}
    rows = DatasetDict(train=Dataset.from_dict(columns))
    found = decide(run, args, rows, from_sentence_encoder=True)
    is_few = number == 499
    assert found.learns_from_pairs == found.stops_after_fitting == is_few
    assert (found.min_rows_to_split > number) == is_few
    for option, stops in (
        ("early_stopping_patience 2", False),
        ("training_arguments label_smoothing_factor=0.1", False),
        ("training_arguments logging_steps=5", is_few),
    ):
        run = parse_run("classify", f"{words} --{option}".split())
        found = decide(run, args, rows, from_sentence_encoder=True)
        assert found.stops_after_fitting == stops


@pytest.mark.slow
def test_an_interrupted_training_without_steps_ends_as_it_would_have(
    encoder, data, tmp_path, monkeypatch
):
    """Here cross-validation decides that the training makes no step."""
    monkeypatch.setattr(CrossValidation, "prefers_fine_tuning", False)
    # This schedule cannot be made for a training without steps.
    schedule = "save_strategy=epoch lr_scheduler_type=polynomial"
    command = f"classify {COMMON} {schedule} --model_name_or_path {encoder}"
    files = {"train_file": data, "output_dir": tmp_path / "m"}
    interrupted(f"train {command}", step=0, event="on_train_end", **files)
    assert train(command, data, tmp_path / "m")["training"]["steps"] == 0


def test_a_model_that_diverged_before_the_training_is_not_saved(
    encoder, data, tmp_path, monkeypatch
):
    """The fitted head is final here, so that no step of the training shows it."""

    def fit_head(trainer) -> None:
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(torch.nan)

    monkeypatch.setattr(stages, "fit_head", fit_head)
    files = {"train_file": data, "output_dir": tmp_path / "m", "model_name_or_path": encoder}
    assert "diverged" in refused(f"train classify {COMMON}", **files)
    assert not (tmp_path / "m").exists()


def tokenizer_of_pairs(folder: Path, command: str, **options: object) -> PreTrainedTokenizerBase:
    """Train a classifier of pairs, which answers one, and return its tokenizer."""
    rows = [{"text": "a cat", "text_pair": text, "label": "ab"[len(text) % 2]} for text in TEXTS]
    data = write_rows(folder / "pairs.jsonl", rows * 4)
    model = folder / "model"
    command += f" {COMMON} --max_steps 1 --text_pair_column text_pair"
    train(f"classify {command}", data, model, **options)
    assert len(answered(model, ["a cat\ta dog"])) == 1
    return AutoTokenizer.from_pretrained(model)


def test_pairs_for_a_model_without_segments_by_a_tokenizer_that_gives_them(tmp_path):
    """A converted DistilBERT or GTE with the tokenizer of BERT is such a model."""
    start = save_bert(tmp_path / "encoder", "a cat dog red house".split())
    vocab_size = config_of(start)["vocab_size"]
    config = stack_config(vocab_size=vocab_size, type_vocab_size=0, pad_token_id=0)
    build(RoFormerLiteModel, config).save_pretrained(start)
    tokenizer = tokenizer_of_pairs(tmp_path, "", model_name_or_path=start)
    assert "token_type_ids" not in tokenizer("a cat", "a dog")


def test_new_pairs_with_segments(tmp_path):
    """The tokenizer of a new model returns the segments for which the model has embeddings."""
    tokenizer = tokenizer_of_pairs(tmp_path, f"{TINY} type_vocab_size=2")
    segments = tokenizer("a cat", "a dog")["token_type_ids"]
    assert set(segments) == {0, 1} and segments == sorted(segments)
