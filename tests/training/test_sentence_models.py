"""Models of `train embed` and `train rerank` give the same results in sentence-transformers.

The example that trains two other kinds of models is tested, too.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sentence_transformers
import torch
from conftest import ROOT, assert_close
from datasets import Dataset
from program import (
    card_of,
    change_fields,
    config_of,
    evaluated,
    in_new_process,
    refused,
    results_of,
    run,
    train,
    write_rows,
)
from sentence_transformers import SentenceTransformer
from sentence_transformers.cross_encoder import evaluation as cross_encoder_evaluation
from sentence_transformers.sentence_transformer import evaluation as sentence_evaluation

import roformer_lite
from roformer_lite.answers import open_model
from roformer_lite.data.sentence_data import candidates, queries_and_documents
from roformer_lite.export.sentence_encoder import check_sentence_modules
from roformer_lite.measuring.baselines import TfidfCosine, retrieval_scores
from roformer_lite.options.tasks import RerankDataArguments
from roformer_lite.recipes.rerank import Rerank

TOPICS = [
    "harbour boat sail wave tide",
    "oven bread flour dough crust",
    "orbit star moon comet sky",
]
WORDS = [topic.split() for topic in TOPICS]
OPTIONS = (
    "--size tiny "
    "--config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--use_cpu --learning_rate 3e-3 --max_length 24 "
    "--per_device_train_batch_size 8 --validation_fraction 0.25 --num_train_epochs 2 "
    "--training_arguments logging_steps=1"
)


def text(draw: np.random.Generator, topic: int) -> str:
    return " ".join(draw.choice(WORDS[topic], draw.integers(2, 7)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data, and with a model of each task."""
    folder = tmp_path_factory.mktemp("sentences")
    draw = np.random.default_rng(1)
    rows: dict[str, list[dict]] = {"pairs": [], "triplets": [], "scores": [], "texts": []}
    for topic, other in draw.integers(0, 3, (48, 2)):
        anchor, positive, negative = (text(draw, t) for t in (topic, topic, (topic + 1) % 3))
        pair = {"anchor": anchor, "positive": positive}
        rows["pairs"].append(pair)
        rows["triplets"].append({**pair, "negative": negative})
        second = {"sentence2": text(draw, other), "score": float(topic == other)}
        rows["scores"].append({"sentence1": anchor, **second})
        rows["texts"].append({"text": anchor})
    for name, table in rows.items():
        write_rows(folder / f"{name}.jsonl", table)
    scores = folder / "scores.jsonl"
    options = f"{OPTIONS} --vocab_size 300"
    train(f"embed {options}", scores, folder / "embed", test_file=scores)
    train(f"rerank {options}", folder / "triplets.jsonl", folder / "rerank")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "opener"),
    [
        ("sparse", sentence_transformers.SparseEncoder),
        ("colbert", sentence_transformers.MultiVectorEncoder),
    ],
)
def test_the_example_trains_the_other_two_kinds(kind, opener, folder):
    """A query is nearer to the document about its topic than to the other documents."""
    start = folder / "language"
    if not start.exists():
        options = "--size tiny --vocab_size 300 --use_cpu --block_size 16"
        train(f"mlm {options} --max_steps 20", folder / "texts.jsonl", start)
    data = folder / "pairs.csv"
    Dataset.from_json(str(folder / "pairs.jsonl")).to_csv(data)
    script = ROOT / "examples" / "sparse_and_colbert.py"
    options = "--use_cpu --num_train_epochs 4 --learning_rate 1e-3 --per_device_train_batch_size 8"
    in_new_process(script, kind, start, data, folder / kind, *options.split())
    model = opener(str(folder / kind), device="cpu")
    documents = ["wave tide boat", "dough oven crust", "comet star sky"]
    query = model.encode_query(["sail harbour"])
    scores = model.similarity(query, model.encode_document(documents))[0]
    assert scores.argmax() == 0 and torch.isfinite(torch.as_tensor(scores)).all()


def test_what_is_measured(folder):
    embed, rerank = (results_of(folder / task) for task in ("embed", "rerank"))
    metrics = embed["metrics"]["validation"]
    assert set(metrics) == {"spearman", "pearson"} and metrics["spearman"] > 0.5
    assert set(rerank["metrics"]["validation"]) == {"mrr@10", "ndcg@10", "map"}
    assert "spearman" in embed["baselines"]["TF-IDF cosine"]["validation"]
    assert rerank["baselines"] == {}
    assert "No baseline was measured" in card_of(folder / "rerank")
    check_sentence_modules(folder / "embed")


def test_a_model_of_another_program_keeps_its_length_and_its_similarity(folder, tmp_path):
    there = shutil.copytree(folder / "embed", tmp_path / "theirs")
    data = folder / "pairs.jsonl"
    found = {}
    for length in (24, 4):
        (there / "results.json").unlink(missing_ok=True)
        model = SentenceTransformer(str(there), device="cpu", similarity_fn_name="dot")
        model.max_seq_length = length
        model.save_pretrained(str(there))
        # The class in the configuration need not be the one that is used.
        change_fields(there / "config.json", architectures=["RoFormerLiteForMaskedLM"])
        found[length] = evaluated(there, data)["metrics"]["test"]
    assert found[24]["mrr@10"] != found[4]["mrr@10"]


def test_an_encoder_without_its_pooler(folder, tmp_path):
    """Sentence encoders do not read BERT's pooler, and `convert` writes none."""
    run("convert --to auto", folder / "embed", tmp_path / "esm")
    assert config_of(tmp_path / "esm")["model_type"] != "roformer_lite"
    texts = ["harbour boat", "oven"]
    found = [
        [row["embedding"] for row in roformer_lite.predict(place, texts)]
        for place in (folder / "embed", tmp_path / "esm")
    ]
    assert_close(*found)


def test_prompts_of_queries_do_not_apply(folder, tmp_path):
    """They do not apply in the training and in `predict` either."""
    there = shutil.copytree(folder / "embed", tmp_path / "prompted")
    model = SentenceTransformer(str(there), device="cpu")
    model.prompts = {"query": "star moon comet sky: ", "document": ""}
    model.save_pretrained(str(there))
    data = folder / "pairs.jsonl"
    assert evaluated(there, data)["metrics"] == evaluated(folder / "embed", data)["metrics"]


def test_metrics_are_those_of_the_library(folder):
    """The evaluators of sentence-transformers measure the same models on the same rows."""
    rows = {name: Dataset.from_json(str(folder / f"{name}.jsonl")) for name in ("pairs", "scores")}
    queries, documents, right = queries_and_documents(rows["pairs"])
    first, second, scores = (
        rows["scores"][name][:] for name in ("sentence1", "sentence2", "score")
    )
    evaluators = {
        ("embed", "pairs"): sentence_evaluation.InformationRetrievalEvaluator(
            {str(number): text for number, text in enumerate(queries)},
            {str(number): text for number, text in enumerate(documents)},
            {str(number): set(map(str, own)) for number, own in enumerate(right)},
            accuracy_at_k=[1, 10],
        ),
        ("embed", "scores"): sentence_evaluation.EmbeddingSimilarityEvaluator(
            first, second, scores, main_similarity="cosine"
        ),
        ("rerank", "scores"): cross_encoder_evaluation.CrossEncoderCorrelationEvaluator(
            list(zip(first, second, strict=True)), scores
        ),
        ("rerank", "pairs"): cross_encoder_evaluation.CrossEncoderRerankingEvaluator(
            candidates(rows["pairs"].sort(["anchor", "positive"]).shuffle(seed=0))
        ),
    }
    for (task, kind), evaluator in evaluators.items():
        saved = open_model(folder / task, "cpu")
        recipe = saved.recipe.for_rows(saved, rows[kind])
        measured = recipe.evaluate(saved, rows[kind], batch_size=8, seed=0)
        library = {
            name.replace("cosine_", "").replace("_cosine", ""): value
            for name, value in evaluator(saved.model).items()
        }
        for name in recipe.metric_names:
            if not name.endswith("_8"):
                assert measured.metrics[name] == pytest.approx(library[name], abs=0.02), name
        assert measured.by_row.value == pytest.approx(measured.metrics[recipe.main_metric])


def test_the_modules_of_a_given_model_are_kept(folder):
    shutil.copytree(folder / "embed", folder / "first")
    pooling = folder / "first" / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text("utf-8").replace('"mean"', '"cls"'), "utf-8")
    out = folder / "second"
    command = "embed --use_cpu --max_steps 1"
    train(command, folder / "pairs.jsonl", out, model_name_or_path=folder / "first")
    saved = open_model(out, "cpu")
    assert saved.model[1].pooling_mode == "cls" and saved.model.config.classifier_pooling == "cls"


def test_a_reranker_is_not_exported_as_something_else(folder):
    message = refused("export", folder / "rerank", folder / "exported")
    assert "CrossEncoder" in message and not (folder / "exported").exists()


def test_baselines_and_candidates():
    rows = Dataset.from_dict({"anchor": ["a b", "c d", "a b"], "positive": ["b x", "d y", "a z"]})
    search = queries_and_documents(rows)
    assert search == (["a b", "c d"], ["b x", "d y", "a z"], [{0, 2}, {1}])
    assert (TfidfCosine(["a b c d x y z"]).retrieval(search) == 1).all()
    # The relevant document has rank 1, rank 4 and, because of a tie with the 18 others, rank 10.
    scores = [np.arange(19, 0, -1), np.arange(19), np.zeros(19)]
    found = retrieval_scores(scores, [{0}, {15}, {3}])
    np.testing.assert_allclose(found, [[1, 1, 1], [1 / 4, 0, 1], [1 / 10, 0, 1]])
    assert (retrieval_scores([np.arange(19)], [{8}]) == 0).all()
    recipe = Rerank(RerankDataArguments(dataset_name="any"), kind="pairs")
    undecided = SimpleNamespace(predict=lambda pairs, **_: np.zeros(len(pairs)))
    # The relevant documents share their rank with one other document, or with two.
    assert sorted(recipe.predicted(undecided, rows, 8)[:, 0]) == pytest.approx([1 / 2, 1 / 1.5])
    samples = candidates(rows)
    assert samples[0] == {"query": "a b", "positive": ["b x", "a z"], "negative": ["d y"]}
    # The negative texts begin after the row of the query and go on from the first row.
    assert samples[1] == {"query": "c d", "positive": ["d y"], "negative": ["a z", "b x"]}
    many = [{"anchor": f"{i}", "positive": f"p{i}"} for i in range(501)]
    assert len(candidates(Dataset.from_list(many))) == 500
