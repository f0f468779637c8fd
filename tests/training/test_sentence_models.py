"""train embed and rerank: what they save opens in sentence-transformers, with the same answers; the example too."""

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
import torch
from conftest import ROOT
from datasets import Dataset
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.commands.embedding_server import TextEmbedder
from roformer_lite.data.sentence_data import candidates, queries_and_documents
from roformer_lite.evaluate.baselines import TfidfCosine, ranking_metrics
from roformer_lite.predict.predictor import Predictor
from roformer_lite.sentence_encoder import check_sentence_modules
from roformer_lite.train.callbacks import TrainingClock
from roformer_lite.train.teacher import principal_axes

TOPICS = ["harbour boat sail wave tide", "oven bread flour dough crust", "orbit star moon comet sky"]
WORDS = [topic.split() for topic in TOPICS]
OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--vocab_size 300 --disable_tqdm true --use_cpu true --learning_rate 3e-3 --max_length 24 "
    "--per_device_train_batch_size 8 --validation_fraction 0.25 --num_train_epochs 2 "
    "--training_arguments logging_steps=1"
).split()
TEXTS = ["boat and sail", "moon"]
PAIR = "boat\tsail wave"
# In a fresh process: the vectors or scores of each model, and a step of training by the library's own trainer.
REOPEN = """
import json, sys
import hf_roformer_lite
import numpy as np
import sentence_transformers as st
from datasets import Dataset

folder, texts = sys.argv[1], json.loads(sys.argv[2])
scored = {"sentence1": texts, "sentence2": texts[::-1], "score": [0.0, 1.0]}
kinds = {"embed": ("SentenceTransformer", scored), "rerank": ("CrossEncoder", scored)}
found = {}
for task, (name, rows) in kinds.items():
    model = getattr(st, name)(f"{folder}/{task}", device="cpu")
    if task == "embed":
        found[task] = model.encode(texts).tolist()
    else:
        found[task] = model.predict([("boat", "sail wave")]).tolist()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    arguments = getattr(st, f"{name}TrainingArguments")(
        f"{folder}/state-{task}", report_to="none", save_strategy="no", max_steps=1, disable_tqdm=True, use_cpu=True
    )
    getattr(st, f"{name}Trainer")(model, arguments, train_dataset=Dataset.from_dict(rows)).train()
    assert any((before[key] != value).any() for key, value in model.state_dict().items()), task
print(json.dumps(found))
"""


def text(draw: np.random.Generator, topic: int) -> str:
    return " ".join(draw.choice(WORDS[topic], draw.integers(2, 7)))


def write_data(folder: Path) -> None:
    draw = np.random.default_rng(1)
    rows = [(topic, other) for topic, other in draw.integers(0, 3, (48, 2))]
    tables = {
        "pairs": [("anchor", "positive"), *((text(draw, a), text(draw, a)) for a, _ in rows)],
        "triplets": [
            ("anchor", "positive", "negative"),
            *((text(draw, a), text(draw, a), text(draw, (a + 1) % 3)) for a, _ in rows),
        ],
        "scores": [
            ("sentence1", "sentence2", "score"),
            *((text(draw, a), text(draw, b), float(a == b)) for a, b in rows),
        ],
    }
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows(table)
    (folder / "texts.txt").write_text("".join(f"{text(draw, a)}\n" for a, _ in rows), "utf-8")


def train(folder: Path, task: str, data: str, name: str, more: Sequence[str] = ()) -> dict:
    command = ["train", task, "--train_file", str(folder / data), "--output_dir", str(folder / name)]
    assert main([*command, *OPTIONS, *more]) == 0
    return json.loads((folder / name / "results.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict[str, dict]]:
    """A folder with data and a model of each task, and the results of each."""
    folder = tmp_path_factory.mktemp("sentences")
    write_data(folder)
    data = {"embed": "scores.csv", "rerank": "triplets.csv"}
    more = {"embed": ["--matryoshka", "8"]}
    return folder, {task: train(folder, task, data[task], task, more.get(task, [])) for task in data}


@pytest.mark.slow
def test_a_fresh_process_opens_them_and_goes_on(trained):
    folder, _ = trained
    command = [sys.executable, "-c", REOPEN, str(folder), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = {task: Predictor.load(str(folder / task), "cpu") for task in theirs}
    embedded = [answer.columns["embedding"] for answer in ours["embed"].answer(TEXTS, 2)]
    np.testing.assert_allclose(embedded, theirs["embed"], atol=1e-6)
    assert ours["rerank"].answer([PAIR], 1)[0].columns["score"] == pytest.approx(theirs["rerank"][0], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sparse", "colbert"])
def test_the_example_trains_the_other_two_kinds(kind, trained):
    """A positive text is nearer to its anchor than the texts about other things are, in a fresh process."""
    folder, _ = trained
    if not (folder / "language").exists():
        options = "--size tiny --vocab_size 300 --block_size 16 --use_cpu true --disable_tqdm true --max_steps 20"
        files = ["--train_file", str(folder / "texts.txt"), "--output_dir", str(folder / "language")]
        assert main(["train", "mlm", *options.split(), *files]) == 0
    script = [sys.executable, str(ROOT / "examples" / "sparse_and_colbert.py"), kind]
    options = ["--use_cpu", "--num_train_epochs", "4", "--learning_rate", "1e-3", "--per_device_train_batch_size", "8"]
    subprocess.run([*script, *(str(folder / name) for name in ("language", "pairs.csv", kind)), *options], check=True)
    opener = sentence_transformers.SparseEncoder if kind == "sparse" else sentence_transformers.MultiVectorEncoder
    model = opener(str(folder / kind), device="cpu")
    documents = ["wave tide boat", "dough oven crust", "comet star sky"]
    scores = model.similarity(model.encode_query(["sail harbour"]), model.encode_document(documents))[0]
    assert scores.argmax() == 0 and torch.isfinite(torch.as_tensor(scores)).all()


def test_the_server_gives_the_same_vectors(trained):
    folder, _ = trained
    saved = Predictor.load(str(folder / "embed"), "cpu").saved
    check_sentence_modules(folder / "embed")
    embedder = TextEmbedder(saved.model[0].model, saved.tokenizer)
    expected = saved.model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(embedder.embed(embedder.encode(TEXTS)), expected, atol=1e-6)


def test_results_and_card(trained):
    folder, results = trained
    metrics = {task: set(found["metrics"]["validation"]) for task, found in results.items()}
    assert metrics["embed"] == {"loss", "spearman", "pearson", "spearman_8", "pearson_8"}
    assert metrics["rerank"] == {"loss", "mrr@10", "ndcg@10", "map"}
    for task, found in results.items():
        assert found["main_metric"] in found["baselines"]["TF-IDF cosine"]["validation"]
        card = (folder / task / "README.md").read_text("utf-8")
        assert "library_name: sentence-transformers" in card and 'pip install ".[embed]"' in card
        assert not re.search("[^\n]\n##", card.split("\n---\n", 1)[1])  # a heading needs an empty line before it
    assert results["embed"]["metrics"]["validation"]["spearman"] > 0.5


def test_evaluate_gives_the_figures_of_the_training(trained, tmp_path):
    folder, _ = trained
    train(folder, "embed", "scores.csv", "tested", ["--test_file", str(folder / "scores.csv"), "--matryoshka", "8"])
    noted = json.loads((folder / "tested" / "results.json").read_text("utf-8"))["metrics"]["test"]
    files = ["--test_file", str(folder / "scores.csv"), "--output_dir", str(tmp_path / "again")]
    assert main(["evaluate", str(folder / "tested"), "--device", "cpu", *files]) == 0
    found = json.loads((tmp_path / "again" / "results.json").read_text("utf-8"))["metrics"]["test"]
    assert found == pytest.approx({name: value for name, value in noted.items() if name != "loss"})
    files[-1] = str(tmp_path / "cut")
    assert main(["evaluate", str(folder / "tested"), "--device", "cpu", *files, "--max_length", "5"]) == 0
    cut = json.loads((tmp_path / "cut" / "results.json").read_text("utf-8"))["metrics"]["test"]
    assert cut.keys() == found.keys() and cut["spearman"] != pytest.approx(found["spearman"])


def test_a_teacher_is_learnt_and_measured_by_scores(trained):
    folder, _ = trained
    teacher = ["--teacher", str(folder / "embed"), "--config", "hidden_size=8", "num_attention_heads=2"]
    scored = ["--validation_file", str(folder / "scores.csv"), "--validation_fraction", "0"]
    found = train(folder, "embed", "texts.txt", "student", teacher)
    assert set(found["metrics"]["validation"]) == {"loss", "spearman", "pearson"}
    train(folder, "embed", "texts.txt", "scored", [*teacher, *scored])
    assert len(Predictor.load(str(folder / "scored"), "cpu").answer(["moon"], 1)[0].columns["embedding"]) == 8


def test_a_student_begins_with_the_tokens_of_its_teacher(trained):
    """Unless it is to have a tokenizer of its own. Distances between the vectors of two tokens are the teacher's."""
    folder, _ = trained
    options = " ".join(OPTIONS).replace("--vocab_size 300 ", "").replace("3e-3", "0").split()
    command = ["train", "embed", "--train_file", str(folder / "texts.txt"), "--teacher", str(folder / "embed")]
    assert main([*command, *options, "--output_dir", str(folder / "begun")]) == 0
    teacher, begun = (Predictor.load(str(folder / name), "cpu").saved for name in ("embed", "begun"))
    assert begun.tokenizer.get_vocab() == teacher.tokenizer.get_vocab()
    card = (folder / "begun" / "README.md").read_text("utf-8")
    assert "from scratch (its vectors of tokens began as those of embed) on " in card
    assert "rows), to give the vectors of embed, with\n" in card
    words = [word for word in sum(WORDS, []) if len(teacher.tokenizer(word)["input_ids"]) == 3]
    assert len(words) > 4
    ids = [teacher.tokenizer(word)["input_ids"][1] for word in words]
    theirs = torch.pdist(torch.tensor(teacher.model.encode(words, normalize_embeddings=True)))
    ours = torch.pdist(begun.model[0].model.get_input_embeddings().weight[ids].detach())
    torch.testing.assert_close(ours / ours.mean(), theirs / theirs.mean(), rtol=1e-3, atol=1e-3)
    kept = [*command, "--model_name_or_path", str(folder / "begun"), "--learning_rate", "0", "--max_steps", "1"]
    assert main([*kept, "--use_cpu", "true", "--disable_tqdm", "true", "--output_dir", str(folder / "kept")]) == 0
    weights = [load_file(folder / name / "model.safetensors") for name in ("begun", "kept")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert main([*command, *OPTIONS, "--output_dir", str(folder / "own")]) == 0
    own = Predictor.load(str(folder / "own"), "cpu").saved.tokenizer
    assert own.get_vocab() != teacher.tokenizer.get_vocab()


def test_the_modules_of_a_given_model_are_kept(trained):
    folder, _ = trained
    shutil.copytree(folder / "embed", folder / "first")
    pooling = folder / "first" / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text("utf-8").replace('"mean"', '"cls"'), "utf-8")
    more = ["--model_name_or_path", str(folder / "first"), "--max_steps", "1", "--remote_code"]
    command = ["train", "embed", "--train_file", str(folder / "pairs.csv"), "--output_dir", str(folder / "second")]
    assert main([*command, "--disable_tqdm", "true", "--use_cpu", "true", *more]) == 0
    saved = Predictor.load(str(folder / "second"), "cpu").saved
    assert saved.model[1].pooling_mode == "cls" and saved.model.config.classifier_pooling == "cls"
    embedder = TextEmbedder(saved.model[0].model, saved.tokenizer)
    expected = saved.model.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(embedder.embed(embedder.encode(TEXTS)), expected, atol=1e-6)
    for file in ("config.json", "tokenizer_config.json"):
        assert "auto_map" in json.loads((folder / "second" / file).read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_an_interrupted_training_ends_with_the_same_weights(trained, task, monkeypatch):
    folder, _ = trained
    more = "--training_arguments save_strategy=steps save_steps=3 eval_strategy=steps eval_steps=3".split()
    data = "scores.csv" if task == "embed" else "pairs.csv"
    train(folder, task, data, f"{task}-whole", more)

    def interrupt(clock, args, state, control, **kwargs) -> None:
        if state.global_step == 7:  # in the second epoch, which begins after the fifth step
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        command = ["train", task, "--train_file", str(folder / data), "--output_dir", str(folder / f"{task}-again")]
        assert main([*command, *OPTIONS, *more]) == 130
    train(folder, task, data, f"{task}-again", more)
    whole, again = (load_file(folder / f"{task}-{name}" / "model.safetensors") for name in ("whole", "again"))
    assert all(torch.equal(whole[key], again[key]) for key in whole)


MISTAKES = {
    "no such columns": ("embed", "a,b\nc,d\n", [], "the columns are a, b, but .* sentence1, sentence2, score; or "),
    "texts without a teacher": ("embed", "text\na\nb\n", [], "train takes --teacher"),
    "a teacher beside pairs": ("embed", "anchor,positive\na,b\n", ["--teacher", "."], "--teacher . is for training"),
    "no number": ("embed", "sentence1,sentence2,score\na,b,high\n", [], "a.csv:2: .*must be a number, not 'high'"),
    "a score above one": ("rerank", "sentence1,sentence2,score\na,b,5\n", [], "5 must lie between 0 and 1"),
    "a token budget": ("embed", "anchor,positive\na,b\n", ["--max_tokens_per_batch", "99"], "makes its own batches"),
    "a width twice": ("embed", "anchor,positive\na,b\n", ["--matryoshka", "8", "8"], "names a width twice"),
    "a metric of other data": (
        "embed",
        "anchor,positive\n" + "a b,c d\n" * 9,
        ["--validation_fraction", "0.25", "--training_arguments", "metric_for_best_model=spearman"],
        "--training_arguments metric_for_best_model=spearman is not measured by embed on these data; choose mrr@10",
    ),
    "label smoothing": (
        "rerank",
        "anchor,positive\na,b\n",
        ["--training_arguments", "label_smoothing_factor=0.1"],
        "is not for rerank, whose losses have no labels",
    ),
    "too wide": ("embed", "anchor,positive\n" + "a b,c d\n" * 9, ["--matryoshka", "99"], "vectors have 16 numbers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name, tmp_path, capsys, monkeypatch):
    if name != "too wide":  # which only the model shows
        monkeypatch.setattr("roformer_lite.train.train.make_tokenizer", None)  # nothing is trained before
    task, content, more, message = MISTAKES[name]
    (tmp_path / "a.csv").write_text(content, "utf-8")
    command = ["train", task, "--train_file", str(tmp_path / "a.csv"), "--output_dir", str(tmp_path / "m"), *OPTIONS]
    assert main([*command, "--validation_fraction", "0", *more]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert re.search(message, shown), shown
    assert not (tmp_path / "m").exists()


def test_principal_axes_keep_the_products():
    draw = np.random.default_rng(0)
    vectors = (draw.normal(size=(50, 4)) @ draw.normal(size=(4, 10))).astype(np.float32)  # of rank 4
    dataset = Dataset.from_dict({"label": vectors.tolist()}).with_format("numpy", dtype=np.float32)
    axes = principal_axes(dataset, 4)
    rotated = vectors @ axes
    np.testing.assert_allclose(rotated @ rotated.T, vectors @ vectors.T, atol=1e-3)
    assert (np.diff((rotated**2).sum(0)) < 0).all()  # the largest first


def test_baselines_and_candidates():
    rows = Dataset.from_dict({"anchor": ["a b", "c d", "a b"], "positive": ["b x", "d y", "a z"]})
    search = queries_and_documents(rows)
    assert search == (["a b", "c d"], ["b x", "d y", "a z"], [{0, 2}, {1}])
    assert TfidfCosine(["a b c d x y z"]).retrieval(search) == {"mrr@10": 1, "accuracy@1": 1, "accuracy@10": 1}
    assert ranking_metrics([1, 4, 20]) == pytest.approx(
        {"mrr@10": 1.25 / 3, "accuracy@1": 1 / 3, "accuracy@10": 2 / 3}
    )
    samples = candidates(rows)
    assert samples[0] == {"query": "a b", "positive": ["b x", "a z"], "negative": ["d y"]}
    assert TfidfCosine(["a b c d x y z"]).reranking(samples)["mrr@10"] == 1
