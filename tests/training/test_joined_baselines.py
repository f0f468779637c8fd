"""A baseline joins the answer of a saved encoder, and the joined answer is the same everywhere."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from answering import shown_answers
from datasets import Dataset
from program import (
    COLOURS,
    TINY,
    card_of,
    change_fields,
    in_new_process,
    refused,
    run,
    train,
    write_rows,
)
from safetensors.numpy import load_file, save_file
from saved_models import TEXTS, save_model
from scipy.special import expit, softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_union
from sklearn.svm import LinearSVC
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from roformer_lite.answers import open_model
from roformer_lite.baseline.crf import WordTagger
from roformer_lite.baseline.files import JoinedBaseline, load_joined, save_joined
from roformer_lite.baseline.join import Join, choose_join
from roformer_lite.baseline.ngrams import NgramClassifier
from roformer_lite.baseline.sequences import best_sequence
from roformer_lite.errors import InputError
from roformer_lite.measuring.tag_schemes import legal_transitions

SMALL = f"classify {TINY} --max_steps 4 --seed 0"
KINDS = ["classify, joined", "tag, joined"]


def rows_of(number: int, separator: str = "") -> list[dict[str, str]]:
    rows = []
    for place in range(number):
        label = COLOURS[place % 4]
        text = f"{label} thing number {place}"
        if separator and place % 3 == 0:
            label += separator + COLOURS[(place + 1) % 4]
        rows.append({"text": text, "label": label})
    return rows


@torch.no_grad()
def logits_of_encoder(model: Path, texts: list[str]) -> tuple[list[str], torch.Tensor]:
    """The labels of a saved classifier, and the logits that its encoder has alone."""
    stock = AutoModelForSequenceClassification.from_pretrained(model)
    inputs = AutoTokenizer.from_pretrained(model)(texts, padding=True, return_tensors="pt")
    return list(stock.config.label2id), stock(**inputs).logits


@pytest.mark.parametrize("separator", ["", "+"])
def test_the_joined_answer_is_that_of_its_parts(tmp_path, separator):
    """The parts are the stock class and a pipeline of scikit-learn."""
    rows = rows_of(60, separator)
    # The validation rows are the training rows, which the machine learns twice in the end.
    data = write_rows(tmp_path / "rows.jsonl", rows)
    options = {"validation_file": data}
    if separator:
        options["label_separator"] = separator
    model = tmp_path / "m"
    train(SMALL, data, model, **options)
    saved = open_model(model, device="cpu")
    texts = [row["text"] for row in rows[:12]]
    labels = [row["label"] for row in rows] * 2
    names, logits = logits_of_encoder(model, texts)
    learned = [row["text"] for row in rows] * 2
    features = make_union(
        TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )
    inputs = features.fit_transform(learned)
    if separator:
        sets = [label.split(separator) for label in labels]
        answers = np.array([[name in own for name in names] for own in sets]).astype(int)
        machine = OneVsRestClassifier(LinearSVC()).fit(inputs, answers)
    else:
        machine = LinearSVC().fit(inputs, list(map(names.index, labels)))
    distances = machine.decision_function(features.transform(texts))
    join = saved.joined.join
    joint = join.weight * logits.double().numpy() + (1 - join.weight) * join.scale * distances
    expected = expit(joint) if separator else softmax(joint, axis=1)
    found = saved.answers(texts, batch_size=5)
    scores = np.array([[answer[name] for name in names] for answer in found])
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    for answer in found:
        assert list(answer.values()) == sorted(answer.values(), reverse=True)


def test_each_part_has_the_best_threshold_on_the_validation_data(tmp_path):
    """The threshold of the encoder alone is in the code of the card."""
    rows = rows_of(60, "+")
    data = write_rows(tmp_path / "rows.jsonl", rows)
    model = tmp_path / "m"
    results = train(SMALL, data, model, validation_file=data, label_separator="+")
    texts = [row["text"] for row in rows]
    names, logits = logits_of_encoder(model, texts)
    scores = logits.sigmoid().numpy()
    true = np.array([[name in row["label"].split("+") for name in names] for row in rows])
    machine = NgramClassifier.fit(texts, true.astype(int), num_labels=len(names))
    threshold = results["settings_of_encoder"]["threshold"]
    assert f"{threshold:.6g}" in card_of(model)
    of_encoder = f1_score(true, scores >= threshold, average="micro")
    figures = {**results["parts"], **results["baselines"]}
    assert figures["its encoder alone"]["validation"]["micro_f1"] == pytest.approx(of_encoder)
    for name, own_scores in (
        ("its encoder alone", scores),
        ("linear SVM on n-grams", machine.scores(texts)),
    ):
        of_thresholds = [
            f1_score(true, own_scores >= score, average="micro") for score in np.unique(own_scores)
        ]
        assert figures[name]["validation"]["micro_f1"] == pytest.approx(max(of_thresholds))


def test_all_validation_rows_have_an_unseen_label(tmp_path):
    """Then the baseline does not learn from them."""
    data = write_rows(tmp_path / "rows.jsonl", rows_of(40, "+"))
    unseen = write_rows(tmp_path / "unseen.jsonl", [{"text": "red thing", "label": "red+black"}])
    options = {"validation_file": unseen, "label_separator": "+"}
    results = train(SMALL, data, tmp_path / "m", **options)
    assert "linear SVM on n-grams" in results["baselines"]


def test_two_labels_and_missing_labels():
    """One hyperplane separates two labels; a label without rows has none."""
    texts = ["good film", "bad film"] * 4
    answers = np.array([0, 2] * 4)
    scores = NgramClassifier.fit(texts, answers, num_labels=3).scores(["good", "bad"])
    assert scores.argmax(axis=1).tolist() == [0, 2] and (scores[:, 1] == -1).all()
    sets = np.array([[1, 0, 1], [1, 0, 0]] * 4)
    scores = NgramClassifier.fit(texts, sets, num_labels=3).scores(["good", "bad"])
    assert ((scores > 0) == [[1, 0, 1], [1, 0, 0]]).all()


def test_rare_n_grams_are_left_out_if_there_are_many_labels(monkeypatch):
    monkeypatch.setattr("roformer_lite.baseline.ngrams.MAX_COEFFICIENTS", 60)
    texts = [f"{colour} {number}" for number in range(9) for colour in COLOURS]
    machine = NgramClassifier.fit(texts, np.arange(36) % 4, num_labels=4)
    assert machine.coefficients.size <= 60
    assert machine.scores(COLOURS).argmax(axis=1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 100])
def test_the_best_join_is_chosen(num_rows):
    """With fewer than two rows, both parts have the same weight."""

    def losses_of(join: Join) -> np.ndarray:
        distance = (join.weight - 0.35) ** 2 + (join.scale - 2.0) ** 2
        return np.full(num_rows, distance)

    found = choose_join(losses_of, scales=(1.0, 2.0, 4.0), default_scale=4.0)
    expected = (0.35, 2.0) if num_rows > 1 else (0.5, 4.0)
    assert (found.weight, found.scale) == pytest.approx(expected)


def test_one_odd_row_among_few_does_not_decide():
    """Nine rows are for the baseline. One is for the encoder so clearly that it would decide."""

    def losses_of(join: Join) -> np.ndarray:
        return np.array([join.weight] * 9 + [20 * (1 - join.weight)])

    assert np.stack([losses_of(Join(1.0, w)) for w in (0.0, 1.0)]).sum(axis=1).argmin() == 1
    found = choose_join(losses_of, scales=(1.0,), default_scale=1.0)
    assert 0 < found.weight < 1


def test_a_regression_has_no_joined_baseline(tmp_path):
    rows = [{**row, "label": place} for place, row in enumerate(rows_of(40))]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    command = f"{SMALL} --problem_type regression"
    train(command, data, tmp_path / "m")
    assert not (tmp_path / "m" / "baseline").exists()
    files = {"train_file": data, "output_dir": tmp_path / "n"}
    assert "--join_baseline" in refused(f"train {command} --join_baseline true", **files)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_process_gives_the_same_table_without_pickle(kind, tmp_path):
    model = save_model(kind, tmp_path / "m")
    saved = open_model(model, device="cpu")
    expected = [answer.line for answer in shown_answers(saved, TEXTS)]
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n")
    code = (
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    if event == 'pickle.find_class': raise AssertionError(arguments)\n"
        "sys.addaudithook(refuse)\n"
        "from roformer_lite.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = ["predict", model, "--input_file", tmp_path / "lines.txt"]
    command += ["--output_file", tmp_path / "out.txt", "--device", "cpu"]
    in_new_process("-c", code, *command)
    assert (tmp_path / "out.txt").read_text().splitlines() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_named(kind, tmp_path):
    """Other damage is tested for all files of a model in tests/fuzz."""
    model = save_model(kind, tmp_path / "m")
    path = model / "baseline" / "baseline.safetensors"
    arrays = load_file(path)
    name = next(name for name, array in arrays.items() if array.ndim == 2)
    save_file({**arrays, name: arrays[name] * np.nan}, path)
    with pytest.raises(InputError, match=name):
        open_model(model, device="cpu")
    path.unlink()
    with pytest.raises(InputError, match="No such file .*baseline.safetensors"):
        open_model(model, device="cpu")


@pytest.mark.parametrize("texts", [TEXTS, ["今天天气很好", "今天天气不好", "好"]])
def test_a_saved_baseline_is_equal(texts, tmp_path):
    machine = NgramClassifier.fit(texts * 3, np.arange(3 * len(texts)) % 3, num_labels=3)
    save_joined(tmp_path, JoinedBaseline(machine, Join(2.0, 0.25)))
    again = load_joined(str(tmp_path), NgramClassifier)
    assert again.join == Join(2.0, 0.25)
    np.testing.assert_array_equal(again.model.scores(texts), machine.scores(texts))


def test_the_random_field_is_that_of_crfsuite(tmp_path):
    import pycrfsuite

    from roformer_lite.baseline.crf import word_features

    sentences = [text.split() for text in TEXTS * 3]
    tags = [["O" if word.islower() else "B-PER" for word in words] for words in sentences]
    names = ["O", "B-PER", "I-PER"]
    field = WordTagger.fit(sentences, tags, names)
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params(
        {"c1": 0.1, "c2": 0.01, "max_iterations": 60, "feature.possible_transitions": True}
    )
    for words, own in zip(sentences, tags, strict=True):
        trainer.append(word_features(words), own)
    trainer.train(str(tmp_path / "crf"))
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "crf"))
    others = [["Rome", "is", "fine"], ["a", "Film", "by", "Ann"], ["x"]]
    for words in sentences + others:
        found = [names[number] for number in field.tag(words)]
        assert found == tagger.tag(word_features(words))


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_the_best_sequence_is_that_of_all_sequences(length):
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(length, 3))
    transitions = generator.normal(size=(4, 4))

    def total(sequence: tuple[int, ...]) -> float:
        places = [0, *(number + 1 for number in sequence), 0]
        steps = transitions[places[:-1], places[1:]].sum()
        return scores[range(length), sequence].sum() + steps

    best = max(product(range(3), repeat=length), key=total)
    assert best_sequence(scores, transitions) == list(best)


LEGAL = {
    "IOB2": r"(O |I-Z |B-(.) (I-\2 )*)*",
    "IOBES": r"(O |I-Z |S-. |B-(.) (I-\2 )*E-\2 )*",
    "BILOU": r"(O |I-Z |U-. |B-(.) (I-\2 )*L-\2 )*",
    "IOB1": ".*",
    None: ".*",
}


@pytest.mark.parametrize("scheme", LEGAL)
def test_the_scheme_says_which_sequences_are_legal(scheme):
    tags = [
        "O",
        *(f"{kind}-X" for kind in "BIESLU" if kind in (scheme or "BI")),
        "B-Y",
        "I-Y",
        "I-Z",
    ]
    legal = legal_transitions(tags, scheme)
    for numbers in product(range(len(tags)), repeat=3):
        places = [0, *(number + 1 for number in numbers), 0]
        sequence = "".join(f"{tags[number]} " for number in numbers)
        is_legal = np.isfinite(legal[places[:-1], places[1:]]).all()
        assert is_legal == bool(re.fullmatch(LEGAL[scheme], sequence)), sequence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "command"),
    [("tag, joined", "convert"), *((kind, "export --format onnx") for kind in KINDS)],
)
def test_the_same_baseline_and_settings_elsewhere(kind, command, tmp_path):
    model = save_model(kind, tmp_path / "m")
    change_fields(model / "results.json", settings={"joiner": " "})
    run(command, model, tmp_path / "other")
    ours = open_model(model, device="cpu").answers(TEXTS, 4)
    theirs = open_model(tmp_path / "other", device="cpu").answers(TEXTS, 4)
    for answer, of_other in zip(ours, theirs, strict=True):
        expected = answer if kind.startswith("tag") else pytest.approx(answer, abs=1e-4)
        assert of_other == expected


def test_rows_without_known_labels_do_not_choose(tmp_path):
    """No validation row is left, so both parts have the same weight."""
    model = save_model("classify, joined", tmp_path / "m")
    saved = open_model(model, device="cpu")
    rows = Dataset.from_dict({"text": ["new"], "labels": [["unknown"]], "origin": ["1"]})
    join = saved.recipe.choose_join(saved, saved.joined.model, rows, 4)
    assert join.weight == 0.5
