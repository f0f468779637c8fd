"""The page: its answers are those of `predict`, its reasons add up, and its server takes no files
and calls nobody."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

pytest.importorskip("gradio", reason="the extra app is not installed")

import httpx  # noqa: E402
from gradio_client import Client  # noqa: E402
from gradio_client.exceptions import AppError  # noqa: E402
from loopback import refuse_other_hosts  # noqa: E402
from saved_models import TEXTS, save_model  # noqa: E402

from roformer_lite.app.explanations import attention_to, ngram_scores  # noqa: E402
from roformer_lite.app.page import Page, open_page  # noqa: E402
from roformer_lite.cli import main  # noqa: E402
from roformer_lite.errors import InputError  # noqa: E402
from roformer_lite.predict.predictor import Predictor  # noqa: E402

PAIRS = [["a fine film", "fine"], ["Rome", "far too long"]]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("app")


@pytest.fixture(scope="module")
def trial_of(place) -> Callable[[str], Page]:
    return lambda kind: Page(Predictor.load(str(save_model(kind, place / kind)), "cpu"))


@pytest.fixture(scope="module")
def predicted(place):
    """What `roformer-lite predict` writes for lines."""

    def predicted(kind: str, lines: list[str], *options: str) -> list[str]:
        (place / "lines.txt").write_text("".join(line + "\n" for line in lines), "utf-8")
        files = ["--input_file", place / "lines.txt", "--output_file", place / "answers.txt"]
        assert (
            main(["predict", str(save_model(kind, place / kind)), *map(str, files), *options]) == 0
        )
        return (place / "answers.txt").read_text("utf-8").split("\n")[:-1]

    return predicted


def test_labels_and_numbers(trial_of, predicted):
    for kind in ("classify", "classify, n-grams", "labels"):
        scores, *_ = trial_of(kind).show(TEXTS[0])
        line = "\t".join(f"{label}\t{score:.4f}" for label, score in scores.items())
        assert [line] == predicted(kind, TEXTS[:1], "--top_k", "3")
    number, _ = trial_of("number").show(TEXTS[1])
    assert f"{number:.4f}" == predicted("number", TEXTS[1:2])[0]
    scores, _ = trial_of("pairs").show(*PAIRS[0])
    assert (
        "{}\t{:.4f}".format(*next(iter(scores.items())))
        == predicted("pairs", ["\t".join(PAIRS[0])])[0]
    )


def test_entities(trial_of, predicted):
    """The tags of IOB2, what models give that do not keep to it, and tags that are no entities."""
    tags = ["B-PER", "I-PER", "B-PER", "O", "O", "I-LOC", "I-PER"]
    line = " ".join(f"{token}/{tag}" for token, tag in zip("abcde/g", tags, strict=True))
    page = trial_of("tag")
    assert page.entities(line) == [
        ("a b ", "PER"),
        ("c ", "PER"),
        ("d e ", None),
        ("/ ", "LOC"),
        ("g ", "PER"),
    ]
    parts, _ = page.show(TEXTS[3])
    assert parts == page.entities(predicted("tag", TEXTS[3:])[0])


def test_text_that_is_written(trial_of, predicted):
    shown, _ = trial_of("seq2seq").show(TEXTS[0], 6)
    assert [shown] == predicted("seq2seq", TEXTS[:1], "--max_new_tokens", "6")
    for temperature, option in ((1.5, ["--temperature", "1.5"]), (0, ["--greedy"])):
        shown, _ = trial_of("causal").show(TEXTS[0], 5, temperature)
        assert [shown] == predicted("causal", TEXTS[:1], "--max_new_tokens", "5", *option)


def test_masks(trial_of):
    trial = trial_of("mlm")
    assert [row[0] for row in trial.show("a [MASK] film in [MASK]")[0]] == [1] * 5 + [2] * 5
    encoded = trial.saved.tokenizer("a [MASK] film", return_tensors="pt")
    place = encoded["input_ids"][0].tolist().index(trial.saved.tokenizer.mask_token_id)
    expected = trial.saved.model(**encoded).logits[0, place].softmax(-1).topk(5).values.tolist()
    assert [row[2] for row in trial.show("a [MASK] film")[0]] == pytest.approx(expected, abs=1e-4)


def test_nearest_texts(trial_of, predicted):
    for kind in ("embed", "rerank"):
        rows = trial_of(kind).show(TEXTS[0], "\n".join(TEXTS[1:]) + "\n\n")
        scores = {text: score for score, text in rows}
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        if kind == "rerank":
            expected = list(
                map(float, predicted(kind, [f"{TEXTS[0]}\t{text}" for text in TEXTS[1:]]))
            )
        else:
            own, *others = map(json.loads, predicted(kind, TEXTS))
            expected = torch.cosine_similarity(torch.tensor([own]), torch.tensor(others)).tolist()
        assert [scores[text] for text in TEXTS[1:]] == pytest.approx(expected, abs=1e-4)
        with pytest.raises(InputError, match="a box is empty"):
            trial_of(kind).show(TEXTS[0], "")


def test_attention(trial_of, place):
    """That of the answer of an encoder–decoder, and of a pair; both texts are there whole."""
    saved = trial_of("seq2seq").saved
    parts = attention_to(saved.model, saved.tokenizer, TEXTS[:1])
    model = AutoModelForSeq2SeqLM.from_pretrained(
        place / "seq2seq", attn_implementation="eager"
    ).eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "seq2seq")
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        written = model.generate(**inputs)[:, :-1]
        outputs = model(**inputs, decoder_input_ids=written, output_attentions=True)
    shares = outputs.cross_attentions[-1][0].mean((0, 1))[
        torch.tensor(inputs.encodings[0].special_tokens_mask) == 0
    ]
    assert "".join(text for text, _ in parts) == TEXTS[0]
    expected = (shares - shares.min()) / (shares.max() - shares.min())
    assert [share for _, share in parts] == pytest.approx(expected.tolist(), abs=1e-3)
    causal = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2)
    ).eval()
    causal.set_attn_implementation("eager")
    with torch.no_grad():
        last = causal(**inputs, output_attentions=True).attentions[-1][0].mean(0)[-1]
    last = last[torch.tensor(inputs.encodings[0].special_tokens_mask) == 0]
    expected = (last - last.min()) / (last.max() - last.min())
    parts = attention_to(causal, tokenizer, TEXTS[:1])
    assert [share for _, share in parts] == pytest.approx(expected.tolist(), abs=1e-3)
    trial = trial_of("pairs")
    parts = attention_to(trial.saved.model, trial.saved.tokenizer, PAIRS[0])
    assert "".join(text for text, _ in parts) == " ".join(PAIRS[0])


@pytest.mark.parametrize(
    "text", [*TEXTS, "Rome! a fine film, a fine film – 早安Rome", "fine", "?", "早"]
)
def test_ngrams_add_up(text, trial_of):
    """With the bias, to what the model adds to the logit; each occurrence of a word is counted."""
    trial = trial_of("classify, n-grams")
    scores = trial.saved.model.text_scores
    ids = trial.saved.tokenizer(text, return_tensors="pt")["input_ids"][0]
    expected = scores(torch.zeros(1, 3), ids, torch.zeros_like(ids))[0][0]
    for label in range(3):
        added = ngram_scores(scores, ids, label)
        assert sum(added.values()) + scores.bias[label].item() == pytest.approx(
            expected[label].item(), abs=1e-5
        )
    if text in TEXTS:
        assert {name for name in added if " " not in name} == set(text.split())


@pytest.fixture(scope="module")
def client(place):
    """Of the page of a classifier, while no other host can be reached."""
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        import socket

        # both are put back at the end
        patch.setattr(socket.socket, "connect", socket.socket.connect)
        patch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
        refuse_other_hosts(asked.append)
        kind = "classify, n-grams"
        page = open_page(
            str(save_model(kind, place / kind)), TEXTS, device="cpu", server_name="127.0.0.1"
        )
        yield Client(page.local_url, verbose=False, analytics_enabled=False)
        page.close()
    assert asked == []


def test_the_page(client, predicted):
    shown, parts, table = client.predict(TEXTS[0], api_name="/answer")
    line = f"{shown['label']}\t{shown['confidences'][0]['confidence']:.4f}"
    assert [line] == predicted("classify, n-grams", TEXTS[:1])
    assert "".join(part["token"] for part in parts) == TEXTS[0]
    assert table["headers"] == ["n-gram", shown["label"]] and 0 < len(table["data"]) <= 8
    head = next(
        part["props"]["value"] for part in client.config["components"] if part["type"] == "markdown"
    )
    assert (
        "`b`, `c`, `a`" in head and "**Accuracy on the test data:** 0.812, 1,200 examples" in head
    )
    assert client.config["analytics_enabled"] is False and client.src.startswith(
        "http://127.0.0.1:"
    )


def test_mistakes_are_reported_to_visitors(client):
    for text, message in (
        (" ", "a box is empty"),
        ("a" * 200_001, "200,001 characters; the page takes 200,000"),
    ):
        with pytest.raises(AppError, match=message):
            client.predict(text, api_name="/answer")


def test_no_file_is_taken(client):
    api = f"{client.src}gradio_api"
    assert (
        httpx.post(f"{api}/upload", files={"files": ("a.txt", b"text")}, timeout=60).status_code
        == 413
    )
    assert httpx.get(f"{api}/file=/etc/passwd", timeout=60).status_code == 403


@pytest.mark.parametrize("kind", ["pairs", "number", "seq2seq", "causal", "mlm", "embed"])
def test_other_pages(kind, trial_of):
    """Each of them is made, and its example is answered."""
    page = trial_of(kind)
    answer = next(one for one in page.build(kind).fns.values() if one.api_name == "answer")
    assert answer.fn(*page.examples[0], *[3, 1.0][: len(answer.inputs) - len(page.names)])
