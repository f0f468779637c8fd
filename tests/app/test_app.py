"""The page shows the answers of `predict`, and its server takes no files and calls nobody."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("gradio", reason="the extra app is not installed")

import httpx  # noqa: E402
from gradio_client import Client  # noqa: E402
from gradio_client.exceptions import AppError  # noqa: E402
from loopback import refuse_other_hosts  # noqa: E402
from saved_models import TEXTS, save_model  # noqa: E402

from roformer_lite.answers import open_model  # noqa: E402
from roformer_lite.cli import main  # noqa: E402
from roformer_lite.commands.app import Page, open_page  # noqa: E402
from roformer_lite.errors import InputError  # noqa: E402

PAIRS = [["a fine film", "fine"], ["Rome", "far too long"]]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("app")


@pytest.fixture(scope="module")
def trial_of(place) -> Callable[[str], Page]:
    return lambda kind: Page(open_model(save_model(kind, place / kind), device="cpu"))


@pytest.fixture(scope="module")
def predicted(place):
    """A function that gives the lines of `roformer-lite predict`."""

    def predicted(kind: str, lines: list[str], *options: str) -> list[str]:
        (place / "lines.txt").write_text("".join(line + "\n" for line in lines), "utf-8")
        model = save_model(kind, place / kind)
        files = ["--input_file", place / "lines.txt", "--output_file", place / "answers.txt"]
        assert main(["predict", str(model), *map(str, files), *options]) == 0
        return (place / "answers.txt").read_text("utf-8").split("\n")[:-1]

    return predicted


def test_labels_and_numbers(trial_of, predicted):
    for kind in ("classify", "classify, joined", "labels"):
        scores = trial_of(kind).show(TEXTS[0])
        line = "\t".join(f"{label}\t{score:.4f}" for label, score in scores.items())
        assert [line] == predicted(kind, TEXTS[:1], "--top_k", "3")
    page = trial_of("classify")
    best, score = next(iter(page.show(TEXTS[0]).items()))
    for threshold, shown in ((score - 0.001, best), (score + 0.001, "-")):
        page.recipe.threshold = threshold
        found = page.show(TEXTS[0])
        assert (found if isinstance(found, str) else next(iter(found))) == shown
    number = trial_of("number").show(TEXTS[1])
    assert str(number) == predicted("number", TEXTS[1:2])[0]
    scores = trial_of("pairs").show(*PAIRS[0])
    label, score = next(iter(scores.items()))
    assert f"{label}\t{score:.4f}" == predicted("pairs", ["\t".join(PAIRS[0])])[0]


def test_tags(trial_of, predicted):
    parts = trial_of("tag").show(TEXTS[3])
    shown = [f"{text.strip()}/{tag or 'O'}" for text, tag in parts]
    assert [" ".join(shown)] == predicted("tag", TEXTS[3:])
    assert {tag for _, tag in parts} - {None}


def test_a_tag_with_a_slash(trial_of):
    page = trial_of("tag")
    config = page.saved.model.config
    names = dict(config.id2label)
    config.id2label = {number: f"{name}/2" for number, name in names.items()}
    tags = {tag for _, tag in page.show(TEXTS[3])}
    config.id2label = names
    assert tags <= {f"{name}/2" for name in names.values()}


def test_text_that_is_written(trial_of, predicted):
    shown = trial_of("seq2seq").show(TEXTS[0], 6)
    assert [shown] == predicted("seq2seq", TEXTS[:1], "--max_new_tokens", "6")
    for temperature, option in ((1.5, ["--temperature", "1.5"]), (None, [])):
        shown = trial_of("causal").show(TEXTS[0], 5, temperature)
        assert [shown] == predicted("causal", TEXTS[:1], "--max_new_tokens", "5", *option)
    masked = "a [MASK] film in [MASK]"
    assert [trial_of("mlm").show(masked)] == predicted("mlm", [masked])


def test_nearest_texts(trial_of, predicted):
    for kind in ("embed", "rerank"):
        rows = trial_of(kind).show(TEXTS[0], "\n".join(TEXTS[1:]) + "\n\n")
        scores = {text: score for score, text in rows}
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        if kind == "rerank":
            pairs = [f"{TEXTS[0]}\t{text}" for text in TEXTS[1:]]
            expected = [float(line) for line in predicted(kind, pairs)]
        else:
            own, *others = [json.loads(line) for line in predicted(kind, TEXTS)]
            expected = torch.cosine_similarity(torch.tensor([own]), torch.tensor(others)).tolist()
        assert [scores[text] for text in TEXTS[1:]] == pytest.approx(expected, abs=1e-4)
        with pytest.raises(InputError, match="a box is empty"):
            trial_of(kind).show(TEXTS[0], "")


@pytest.fixture(scope="module")
def client(place):
    """A client of a classifier's page, while no other host can be reached."""
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        import socket

        # The patch puts both functions back at the end.
        patch.setattr(socket.socket, "connect", socket.socket.connect)
        patch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
        refuse_other_hosts(asked.append)
        kind = "classify, joined"
        model = save_model(kind, place / kind)
        page = open_page(str(model), TEXTS, device="cpu", server_name="127.0.0.1")
        yield Client(page.local_url, verbose=False, analytics_enabled=False)
        page.close()
    assert asked == []


def test_the_page(client, predicted):
    shown = client.predict(TEXTS[0], api_name="/answer")
    line = f"{shown['label']}\t{shown['confidences'][0]['confidence']:.4f}"
    assert [line] == predicted("classify, joined", TEXTS[:1])
    assert client.config["analytics_enabled"] is False
    assert client.src.startswith("http://127.0.0.1:")


def test_mistakes_are_reported_to_visitors(client):
    for text, message in (
        (" ", "a box is empty"),
        ("a" * 200_001, "200,001 characters, but the page reads at most 200,000"),
    ):
        with pytest.raises(AppError, match=message):
            client.predict(text, api_name="/answer")


def test_no_file_is_taken(client):
    api = f"{client.src}gradio_api"
    answer = httpx.post(f"{api}/upload", files={"files": ("a.txt", b"text")}, timeout=60)
    assert answer.status_code == 413
    assert httpx.get(f"{api}/file=/etc/passwd", timeout=60).status_code == 403


@pytest.mark.parametrize("kind", ["pairs", "number", "seq2seq", "causal", "mlm", "embed"])
def test_other_pages(kind, trial_of):
    """Each of these pages can be built, and its example gets an answer."""
    page = trial_of(kind)
    answer = next(one for one in page.build(kind).fns.values() if one.api_name == "answer")
    number_of_settings = len(answer.inputs) - len(page.names)
    settings = [3, 1.0][:number_of_settings]
    assert answer.fn(*page.examples[0], *settings)
