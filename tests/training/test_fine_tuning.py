"""Training from given models: heads are kept or new, and an encoder gets a decoder."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from conftest import build, stack_config
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertConfig, BertModel, BertTokenizer, TrainingArguments

from hf_roformer_lite import RoFormerLiteForSequenceClassification, RoFormerLiteModel
from roformer_lite.answers import open_model
from roformer_lite.cli import main
from roformer_lite.data.splits import hold_out
from roformer_lite.options.run import parse_run, read_run_file
from roformer_lite.recipes.classify_rows import ClassifyReader
from roformer_lite.training import stages
from roformer_lite.training.callbacks import TrainingClock
from roformer_lite.training.cross_validation import CrossValidation
from roformer_lite.training.defaults import with_defaults
from roformer_lite.training.few_rows import decide
from roformer_lite.training.pairs import PAIRS_FOLDER

TEXTS = ["a cat", "a dog", "the red house", "one small wing"]
TINY = "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1".split()
COMMON = "--baselines false --disable_tqdm true --use_cpu true --training_arguments save_strategy=no eval_strategy=no"
UNCHANGED = "--learning_rate 0 --weight_decay 0 --max_steps 1".split()
TABLE = "embeddings.word_embeddings.weight"


def write_rows(path: Path, labels: list[str]) -> Path:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 5), "utf-8")
    return path


def write_tags(path: Path, tags: list[str]) -> Path:
    sentence = "".join(
        f"{word} {tag}\n" for word, tag in zip(("Anna", "in", "Rome"), tags, strict=True)
    )
    path.write_text((sentence + "\n") * 10, "utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with texts, pairs, a classifier, an encoder and a decoder of another vocabulary."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "text.txt").write_text("\n".join(TEXTS * 10) + "\n", "utf-8")
    rows = "".join(f"{text}\t{text.upper()}\n" for text in TEXTS * 10)
    (folder / "pairs.tsv").write_text("source\ttarget\n" + rows, "utf-8")
    data = write_rows(folder / "rows.jsonl", ["cat", "cat", "thing", "thing"])
    learning = "--config hidden_dropout=0.0 --learning_rate 3e-3 --num_train_epochs 4 --vocab_size 300".split()
    train("classify", data, folder / "classifier", *TINY, *learning)
    lines = [*TINY, "--line_by_line", "true", "--max_steps", 2, "--block_size", 16]
    train("mlm", folder / "text.txt", folder / "encoder", *lines, "--vocab_size", 300)
    train("causal", folder / "text.txt", folder / "other", *lines, "--vocab_size", 268)
    return folder


def train(task: str, data: Path, model: Path, *options: str | Path | int, status: int = 0) -> Path:
    files = ["--train_file", data, "--output_dir", model]
    arguments = ["train", task, *files, *COMMON.split(), *options]
    assert main([str(argument) for argument in arguments]) == status
    return model


def tensors(model: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    stored = load_file(model / "model.safetensors")
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in stored.items()
        if name.startswith(prefix)
    }


def head(model: Path) -> dict[str, torch.Tensor]:
    return {
        name: tensor for name, tensor in tensors(model).items() if not name.startswith("model.")
    }


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name], theirs[name]) for name in ours
    )


def same_stack(ours: Path, theirs: Path) -> bool:
    return same(tensors(ours, "model."), tensors(theirs, "model."))


def config_of(model: Path) -> dict:
    return json.loads((model / "config.json").read_text("utf-8"))


def predictions(model: Path, lines: Path, capsys: pytest.CaptureFixture) -> list[str]:
    lines.write_text("".join(text + "\n" for text in TEXTS), "utf-8")
    capsys.readouterr()
    assert main(["predict", str(model), "--input_file", str(lines)]) == 0
    return capsys.readouterr().out.split("\n")[:-1]


def save_bert(
    folder: Path, words: Iterable[str], do_lower_case: bool = True, **fields: float
) -> None:
    folder.with_name("vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), "utf-8"
    )
    tokenizer = BertTokenizer(str(folder.with_name("vocab.txt")), do_lower_case=do_lower_case)
    tokenizer.save_pretrained(folder)
    fields |= {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    }
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer), **fields)).save_pretrained(folder)


def test_equal_labels_keep_the_head_and_their_order(folder, tmp_path, capsys):
    # Another program may have numbered the labels in this order.
    turned = shutil.copytree(folder / "classifier", tmp_path / "turned")
    # A fine-tuned model has no baseline in its answer.
    shutil.rmtree(turned / "baseline")
    config = config_of(turned) | {
        "id2label": {"0": "thing", "1": "cat"},
        "label2id": {"thing": 0, "cat": 1},
    }
    (turned / "config.json").write_text(json.dumps(config), "utf-8")
    true = ["thing", "cat", "thing", "cat"]
    data = write_rows(tmp_path / "a.jsonl", true)
    options = ["--model_name_or_path", turned, *UNCHANGED, "--test_file", data]
    tuned = train("classify", data, tmp_path / "tuned", *options)
    assert "new head" not in capsys.readouterr().err
    assert (
        same(tensors(tuned), tensors(turned)) and config_of(tuned)["label2id"] == config["label2id"]
    )
    answers = predictions(tuned, tmp_path / "lines.txt", capsys)
    assert answers == predictions(turned, tmp_path / "lines.txt", capsys)
    metrics = json.loads((tuned / "results.json").read_text("utf-8"))["metrics"]
    accuracy = metrics["test"]["accuracy"]
    right = [answer.split("\t")[0] for answer in answers]
    # The metrics must number the labels as the model does.
    assert accuracy == sum(map(str.__eq__, right, true)) / 4


@pytest.mark.parametrize("labels", ["yes yes no no", "1 2 3 4"], ids=["as many", "a number"])
def test_other_labels_get_a_new_head(folder, tmp_path, capsys, labels):
    data = write_rows(tmp_path / "a.jsonl", labels.split())
    if "yes" in labels:
        options = []
        said = "are no, yes"
    else:
        options = ["--problem_type", "regression"]
        said = "are value"
    start = ["--model_name_or_path", folder / "classifier", "--fit_head", "false", *UNCHANGED]
    tuned = train("classify", data, tmp_path / "m", *start, *options)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "new head" in line]
    assert said in line and same_stack(tuned, folder / "classifier")
    new = head(tuned)
    old = head(folder / "classifier")
    name = "classifier.out_proj.weight"
    assert new.keys() == old.keys() and new[name].shape[0] == len(config_of(tuned)["label2id"])
    assert not torch.equal(new[name], old[name])
    # The head is initialised as it is in a new model.
    assert 0 < new[name].std() < 0.1


def test_an_encoder_becomes_a_tagger_and_that_one_another(folder, tmp_path, capsys):
    """A classifier becomes a tagger, and the head of a tagger is kept only for the same tags."""
    data = write_tags(tmp_path / "a.iob2", ["B-PER", "O", "O"])
    first = train(
        "tag", data, tmp_path / "first", "--model_name_or_path", folder / "classifier", *UNCHANGED
    )
    assert "RoFormerLiteForSequenceClassification has no head for tag" in capsys.readouterr().err
    assert config_of(first)["label2id"] == {"O": 0, "B-PER": 1, "I-PER": 2} and same_stack(
        first, folder / "classifier"
    )
    again = train("tag", data, tmp_path / "again", "--model_name_or_path", first, *UNCHANGED)
    assert "new head" not in capsys.readouterr().err and same(tensors(again), tensors(first))
    data = write_tags(tmp_path / "b.iob2", ["B-PER", "O", "B-LOC"])
    other = train("tag", data, tmp_path / "other", "--model_name_or_path", first, *UNCHANGED)
    assert "its tags are O, B-PER, I-PER, but those of" in capsys.readouterr().err
    assert same_stack(other, first)
    assert [*config_of(other)["id2label"].values()] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]


def test_another_tokenizer_than_the_models_is_refused(folder, tmp_path, capsys):
    """The model would read each token as another one."""
    start = ["--model_name_or_path", folder / "encoder", "--tokenizer", folder / "other"]
    train("mlm", folder / "text.txt", tmp_path / "m", *start, status=2)
    assert "has other tokens than --model_name_or_path" in capsys.readouterr().err


@pytest.fixture
def encoder(tmp_path) -> Path:
    """A BERT with a token for each letter, and its tokenizer."""
    save_bert(tmp_path / "encoder", "acdeghilmnorstw", initializer_range=0.3)
    return tmp_path / "encoder"


def test_a_new_classifier_begins_with_the_tokens_of_a_teacher(encoder, tmp_path):
    """Centred vectors of 20 tokens have at most 19 axes, for which 20 dimensions are enough."""
    narrow = ["--config", "hidden_size=20"]
    data = write_rows(tmp_path / "a.jsonl", ["cat", "cat", "thing", "thing"])
    tuned = train(
        "classify", data, tmp_path / "m", "--teacher", encoder, *TINY, *UNCHANGED, *narrow
    )
    teacher = SentenceTransformer(str(encoder), device="cpu")
    theirs = torch.pdist(torch.tensor(teacher.encode(list("acdeghil"), normalize_embeddings=True)))
    ours = torch.pdist(tensors(tuned)[f"model.{TABLE}"][5:13])
    torch.testing.assert_close(ours / ours.mean(), theirs / theirs.mean(), atol=1e-4, rtol=1e-4)


def assert_rows_are_held_out_where_needed(encoder: Path, data: Path, tmp_path: Path) -> None:
    """Few rows are all trained on, unless the training has epochs to choose from."""
    numbers = write_rows(tmp_path / "n.jsonl", ["1", "2", "3", "4"])
    for rows in (data, numbers):
        # A tenth of these 120 rows would usually be held out.
        rows.write_text(rows.read_text() * 6)
    of_classes = ["--class_weights", "balanced"]
    of_numbers = ["--problem_type", "regression"]
    for rows, options, holds_out in (
        (data, [], False),
        (data, of_classes, True),
        (data, ["--weight_decay", "0.1"], True),
        (numbers, of_numbers, True),
    ):
        few = train("classify", rows, tmp_path / "f", "--model_name_or_path", encoder, *options)
        results = json.loads((few / "results.json").read_text())
        assert (results["training"]["steps"] > 1, "validation" in results["metrics"]) == (
            holds_out,
            holds_out,
        )
        shutil.rmtree(few)
    none_to_choose_by = ["--validation_fraction", 0, "--min_precision", 0.9]
    train("classify", data, few, "--model_name_or_path", encoder, *none_to_choose_by, status=2)
    assert not few.exists()
    start = ["--model_name_or_path", encoder, "--fit_head", "false"]
    stock = train("classify", data, tmp_path / "s", *start, *UNCHANGED)
    assert config_of(stock)["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode": "cls", "include_prompt": True},
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    ],
    ids=["cls", "mean"],
)
def test_the_head_on_a_sentence_encoder_reads_its_vectors(encoder, tmp_path, pooling):
    theirs = BertModel.from_pretrained(encoder).eval()
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    data = write_rows(tmp_path / "a.jsonl", ["cat", "cat", "thing", "thing"])
    tuned = train("classify", data, tmp_path / "m", "--model_name_or_path", encoder, *UNCHANGED)
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
        torch.testing.assert_close(seen[-1][0], expected)
    content = read_run_file(tuned / "run.yaml")
    assert content["model_name_or_path"] == str(encoder)
    assert "--model_name_or_path encoder" in (tuned / "README.md").read_text()
    if "cls" not in pooling.values():
        assert_rows_are_held_out_where_needed(encoder, data, tmp_path)


@pytest.mark.parametrize("number", [499, 500])
def test_fewer_than_500_rows_are_few(number, folder, tmp_path):
    """The rows are counted before some of them are held out."""
    given = ["--train_file", folder / "rows.jsonl", "--model_name_or_path", folder / "encoder"]
    words = [*given, "--output_dir", tmp_path / "m"]
    run = with_defaults(parse_run("classify", list(map(str, words))))
    args = TrainingArguments(str(tmp_path / "arguments"), use_cpu=True)
    texts = [f"text {row}" for row in range(number)]
    columns = {"text": texts, "labels": [["b"]] * number, "is_list": [False] * number}
    rows = DatasetDict(train=Dataset.from_dict(columns))
    found = decide(run, args, rows, from_sentence_encoder=True)
    is_few = number == 499
    assert found.learns_from_pairs == found.stops_after_fitting == is_few
    assert len(hold_out(ClassifyReader(run.data), run.data, rows, 0, found.min_rows_to_split)) == (
        1 if is_few else 2
    )


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_interrupted_training_of_few_rows_ends_as_it_would_have(
    is_kept, encoder, tmp_path, monkeypatch
):
    """Cross-validation decides whether the training makes no step or trains all epochs."""
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    monkeypatch.setattr(CrossValidation, "prefers_fine_tuning", not is_kept)

    def interrupt(clock, args, state, control, **kwargs) -> None:
        is_on_pairs = Path(args.output_dir).name == PAIRS_FOLDER
        if state.global_step == (0 if is_kept else 2) and not is_on_pairs:
            raise KeyboardInterrupt

    data = write_rows(tmp_path / "a.jsonl", ["cat", "cat", "thing", "thing"])
    saving = ["--training_arguments", "save_strategy=epoch", "eval_strategy=no"]
    # This schedule cannot be made for a training without steps.
    saving += ["lr_scheduler_type=polynomial"]
    start = ["--model_name_or_path", encoder, *saving]
    with monkeypatch.context() as patch:
        patch.setattr(TrainingClock, "on_train_end" if is_kept else "on_step_begin", interrupt)
        train("classify", data, tmp_path / "m", *start, status=130)
    model = train("classify", data, tmp_path / "m", *start)
    results = json.loads((model / "results.json").read_text())
    assert results["training"]["steps"] == (0 if is_kept else 4)
    assert (model / "loss_curve.png").exists() != is_kept


def test_a_model_that_diverged_before_the_training_is_not_saved(
    encoder, tmp_path, monkeypatch, capsys
):
    """The fitted head is final here, so that no step of the training shows it."""

    def fit_head(trainer, train) -> None:
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(torch.nan)

    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    monkeypatch.setattr(stages, "fit_head", fit_head)
    data = write_rows(tmp_path / "a.jsonl", ["cat", "cat", "thing", "thing"])
    train("classify", data, tmp_path / "m", "--model_name_or_path", encoder, status=2)
    assert "diverged" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("task", ["classify", "rerank"])
def test_pairs_for_a_model_without_segments_by_a_tokenizer_that_gives_them(task, tmp_path):
    """A converted DistilBERT or GTE with the tokenizer of BERT is such a model."""
    save_bert(tmp_path / "bert", "a cat dog red house".split())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bert")
    config = stack_config(vocab_size=len(tokenizer), type_vocab_size=0, pad_token_id=0)
    build(RoFormerLiteModel, config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    first, second, label = {
        "classify": ("text", "text_pair", "label"),
        "rerank": ("sentence1", "sentence2", "score"),
    }[task]
    data = tmp_path / "pairs.jsonl"
    rows = [{first: "a cat", second: text, label: number % 2} for number, text in enumerate(TEXTS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    options = ["--model_name_or_path", tmp_path / "encoder", "--max_steps", 1]
    if task == "classify":
        options += ["--text_pair_column", second]
    model = train(task, data, tmp_path / "model", *options)
    pair = ("a cat", "a dog")
    saved = open_model(model, device="cpu")
    (answer,) = saved.answers([list(pair)], batch_size=1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert "token_type_ids" not in tokenizer(*pair)
    stock = RoFormerLiteForSequenceClassification.from_pretrained(model).eval()
    with torch.no_grad():
        logits = stock(**tokenizer(*pair, return_tensors="pt")).logits[0]
    if task == "classify":
        name = "1"
        expected = logits.softmax(-1)[1]
    else:
        name = "score"
        expected = logits.sigmoid()[0]
    assert answer[name] == pytest.approx(expected.item(), abs=1e-5)
