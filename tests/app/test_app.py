"""The page on a server of this machine: its answers are those of `predict`, whatever the task."""

import base64
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

pytest.importorskip("gradio", reason="the extra app is not installed")

import httpx  # noqa: E402
from gradio.utils import get_space, get_upload_folder  # noqa: E402
from gradio_client import Client  # noqa: E402
from gradio_client.exceptions import AppError  # noqa: E402
from loopback import refuse_other_hosts  # noqa: E402
from tiny_models import MODELS, NAMES, TEXTS, save_model  # noqa: E402

from roformer_lite.app.attention import SHOWN_TOKENS, attention_maps, attention_table  # noqa: E402
from roformer_lite.app.launch import launch, load_trial  # noqa: E402
from roformer_lite.app.page import build_page  # noqa: E402
from roformer_lite.app.views import entity_parts  # noqa: E402
from roformer_lite.cli import main  # noqa: E402
from roformer_lite.errors import InputError  # noqa: E402
from roformer_lite.request_body import MAX_BODY  # noqa: E402

PAIRS = [["a fine film", "fine"], ["Rome", "far too long"]]
MASKED = "a [MASK] film in [MASK]"
CAUSAL = {
    "max_new_tokens": "5",
    "temperature": "1.5",
    "top_p": "",
    "top_k": "7",
    "repetition_penalty": "",
    "seed": "3",
}
CAUSAL |= {"greedy": False, "beams": ""}


@pytest.fixture(scope="module", autouse=True)
def other_hosts():
    """The hosts that were asked for while the tests ran: none."""
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        import socket

        patch.setattr(socket.socket, "connect", socket.socket.connect)  # both are put back at the end
        patch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
        refuse_other_hosts(asked)
        yield
    assert asked == []


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("app")


@pytest.fixture(scope="module")
def directory_of(place) -> Callable[[str], Path]:
    def directory_of(kind: str) -> Path:
        return place / kind if (place / kind).exists() else save_model(kind, place / kind)

    return directory_of


@pytest.fixture(scope="module")
def client_of(directory_of):
    """A client of the page of each model, which is opened once."""
    pages, clients = [], {}

    def client_of(kind: str) -> Client:
        if kind not in clients:
            page = build_page(load_trial(str(directory_of(kind)), "cpu"), kind)
            pages.append(page)
            launch(page, "127.0.0.1", wait=False)
            clients[kind] = Client(page.local_url, verbose=False, analytics_enabled=False)
        return clients[kind]

    yield client_of
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def predicted(directory_of, place):
    """What `roformer-lite predict` writes for lines."""

    def predicted(kind: str, lines: list[str], *options: str) -> list[str]:
        (place / "lines.txt").write_text("".join(line + "\n" for line in lines), "utf-8")
        files = ["--input_file", place / "lines.txt", "--output_file", place / "answers.txt"]
        assert main(["predict", str(directory_of(kind)), *map(str, files), *options]) == 0
        return (place / "answers.txt").read_text("utf-8").split("\n")[:-1]

    return predicted


def table_of(link: str) -> str:
    return base64.b64decode(re.search(r"base64,([^\"]*)", link)[1]).decode()


def test_nothing_is_reported_and_no_link_is_shared(client_of):
    client = client_of("classify")
    assert client.config["analytics_enabled"] is False and not client.config.get("is_space") and get_space() is None
    assert client.src.startswith("http://127.0.0.1:")


def test_no_file_is_taken_and_none_is_fetched(client_of):
    """The page answers as before; the fixture `other_hosts` sees that nobody was asked for a file."""
    client = client_of("classify")
    api = f"{client.src}gradio_api"
    kept = Path(get_upload_folder())
    before = set(kept.rglob("*"))
    far = {"path": "http://192.0.2.1/a.txt", "meta": {"_type": "gradio.FileData"}}
    hidden = json.dumps({"data": [far]}).replace("_type", "\\u005ftype")
    session = {"session_hash": client.session_hash}
    client.predict(TEXTS[0], api_name="/answer")
    for method, path, given in (
        ("POST", "/upload", {"files": {"files": ("a.txt", b"text")}}),
        ("GET", "/deep_link", {"params": session}),
        ("GET", "/file=http://192.0.2.1/a.txt", {}),
        ("HEAD", "/file=http://192.0.2.1/a.txt", {}),
        ("GET", "/file=http%3A%2F%2F192.0.2.1%2Fa.txt", {}),
        ("GET", "/%66ile%3Dhttp://192.0.2.1/a.txt", {}),
        ("GET", "/file/etc/passwd", {}),
        ("GET", "/proxy=http://192.0.2.1/a.txt", {}),
        ("POST", "/process_recording", {"files": {"files": ("a.webm", b"video")}}),
        ("POST", "/call/answer", {"json": {"data": [far]}}),
        ("POST", "/run/answer", {"content": hidden, "headers": {"content-type": "application/json"}}),
    ):
        assert httpx.request(method, api + path, timeout=60, **given).status_code == 403, path
    too_large = httpx.post(api + "/run/answer", content=b" " * (MAX_BODY + 1), timeout=60)
    assert too_large.status_code == 413 and "1,048,576 bytes" in too_large.text
    assert client.predict(TEXTS[0], api_name="/answer")["label"] in "abc"
    assert httpx.get(client.src, timeout=60).status_code == 200 and set(kept.rglob("*")) == before


@pytest.mark.parametrize("kind", [kind for kind, (*_, settings) in MODELS.items() if "pairs" not in settings])
def test_tables_are_those_of_predict(kind, client_of, directory_of, place):
    """Byte for byte, also where tokens are drawn at random."""
    texts = [*TEXTS, "a, b", '"'] if kind != "mlm" else [MASKED, *TEXTS]
    with (place / "rows.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([["text"], *([text] for text in texts)])
    files = ["--input_file", place / "rows.csv", "--output_file", place / "out.csv", "--text_column", "text"]
    unset = [False if field["component"] == "Checkbox" else "" for field in fields_of(client_of(kind), "/table")[1:]]
    assert main(["predict", str(directory_of(kind)), *map(str, files)]) == 0
    shown, link = client_of(kind).predict("\n".join(["", *texts]), *unset, api_name="/table")
    assert table_of(link) == (place / "out.csv").read_bytes().decode()
    assert [shown["headers"], *shown["data"]] == list(csv.reader(io.StringIO(table_of(link), newline="")))


def fields_of(client: Client, endpoint: str) -> list[dict]:
    return client.view_api(return_format="dict")["named_endpoints"][endpoint]["parameters"]


def test_labels_and_scores(client_of, predicted):
    shown = client_of("classify").predict(TEXTS[0], api_name="/answer")
    scores = [f"{one['label']}\t{one['confidence']:.4f}" for one in shown["confidences"]]
    assert ["\t".join(scores)] == predicted("classify", TEXTS[:1], "--top_k", "3")


def test_several_labels(client_of, predicted):
    for threshold in ("", "0.3"):
        options = ["--threshold", threshold] if threshold else []
        labels, scores = client_of("labels").predict(TEXTS[0], threshold, api_name="/answer")
        assert [labels] == predicted("labels", TEXTS[:1], *options)
        assert {one["label"] for one in scores["confidences"]} == {"a", "b", "c"}


def test_a_number(client_of, predicted):
    assert f"{client_of('number').predict(TEXTS[1], api_name='/answer'):.4f}" == predicted("number", TEXTS[1:2])[0]


def test_pairs(client_of, predicted):
    shown = client_of("pairs").predict(*PAIRS[0], api_name="/answer")
    best = shown["confidences"][0]
    lines = ["\t".join(pair) for pair in PAIRS]
    assert f"{best['label']}\t{best['confidence']:.4f}" == predicted("pairs", lines)[0]
    table = client_of("pairs").predict("\n".join(lines), api_name="/table")[0]
    assert ["\t".join(row[1:]) for row in table["data"]] == [
        re.sub(r"0+$", "", line) for line in predicted("pairs", lines)
    ]


@pytest.mark.parametrize("kind", ["entities", "tags"])
def test_marked_text(kind, client_of, predicted):
    spans = client_of(kind).predict(TEXTS[3], api_name="/answer")
    joiner = " " if kind == "entities" else ""
    assert "".join(span["token"] for span in spans) == joiner.join(TEXTS[3].split())
    named = [span["class_or_confidence"] for span in spans if span["token"] != " "]
    tags = [part.rpartition("/")[2] for part in predicted(kind, TEXTS[3:])[0].split(" ")]
    if kind == "tags":
        assert named == tags
    else:
        assert [name for name in named if name] == [name for _, name in entity_parts(tags, tags, " ") if name]


def test_entities():
    """The tags of IOB2, and what models give that do not keep to it."""
    tags = ["B-PER", "I-PER", "B-PER", "O", "O", "I-LOC", "I-PER"]
    assert entity_parts("abcdefg", tags, "-") == [
        ("a-b", "PER"),
        ("c", "PER"),
        ("d-e", None),
        ("f", "LOC"),
        ("g", "PER"),
    ]
    assert set(tags[:3]) < set(NAMES)


def test_text_to_text(client_of, predicted):
    for beams, length in (("", None), ("3", "6")):
        options = ["--beams", beams, "--max_new_tokens", length] if beams else []
        shown = client_of("seq2seq").predict(TEXTS[0], beams, length, api_name="/answer")
        assert [shown] == predicted("seq2seq", TEXTS[:1], *options)


def test_continuations(client_of, predicted):
    """Drawn by the same numbers, twice the same, and by beams."""
    client = client_of("causal")
    options = [text for name, value in CAUSAL.items() if value for text in (f"--{name}", value)]
    labels = [field["label"] for field in fields_of(client, "/answer")[1:]]
    assert set(labels) == set(CAUSAL)
    for _ in range(2):
        shown = client.predict(TEXTS[0], *(CAUSAL[label] for label in labels), api_name="/answer")
        assert [shown] == predicted("causal", TEXTS[:1], *options)
    searched = [{"beams": "2", "max_new_tokens": "4", "greedy": False}.get(label, "") for label in labels]
    shown = client.predict(TEXTS[0], *searched, api_name="/answer")
    assert [shown] == predicted("causal", TEXTS[:1], "--beams", "2", "--max_new_tokens", "4")


def test_masks(client_of, predicted, directory_of):
    filled, table = client_of("mlm").predict(MASKED, api_name="/answer")
    assert [filled] == predicted("mlm", [MASKED])
    rows = table["data"]
    assert [row[0] for row in rows] == [1] * 5 + [2] * 5
    assert all(row[1] for row in rows), "white space shows as a dot"
    trial = load_trial(str(directory_of("mlm")), "cpu")
    encoded = trial.saved.tokenizer(MASKED, return_tensors="pt")
    logits = trial.saved.model(**encoded).logits.detach()[0]
    text = torch.ones(logits.shape[1], dtype=torch.bool)
    text[trial.saved.tokenizer.all_special_ids] = False
    places = (encoded["input_ids"][0] == trial.saved.tokenizer.mask_token_id).nonzero().flatten()
    for number, place in enumerate(places):
        probabilities = logits[place, text].exp() / logits[place, text].exp().sum()
        expected = probabilities.sort(descending=True).values[:5].tolist()
        assert [row[2] for row in rows if row[0] == number + 1] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["embed", "rerank"])
def test_nearest_texts(kind, client_of, predicted):
    table = client_of(kind).predict(TEXTS[0], "\n".join(TEXTS[1:]) + "\n\n", api_name="/answer")
    scores = {text: score for score, text in table["data"]}
    assert list(scores.values()) == sorted(scores.values(), reverse=True) and set(scores) == set(TEXTS[1:])
    if kind == "rerank":
        lines = predicted(kind, [f"{TEXTS[0]}\t{text}" for text in TEXTS[1:]])
        assert [scores[text] for text in TEXTS[1:]] == list(map(float, lines))
        return
    own, *others = map(json.loads, predicted(kind, TEXTS))
    expected = torch.cosine_similarity(torch.tensor([own]), torch.tensor(others))
    assert [scores[text] for text in TEXTS[1:]] == pytest.approx(expected.tolist(), abs=1e-4)


def test_attention_of_a_pair_of_stacks(directory_of):
    """As a model of its own gives it, for the answer that the page shows."""
    (cross, encoder, decoder) = load_trial(str(directory_of("seq2seq")), "cpu").attention(TEXTS[0])
    model = AutoModelForSeq2SeqLM.from_pretrained(directory_of("seq2seq"), attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(directory_of("seq2seq"))
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    written = model.generate(**inputs)
    with torch.no_grad():
        outputs = model(**inputs, decoder_input_ids=written[:, :-1], output_attentions=True)
    for ours, theirs in zip((cross, encoder, decoder), ("cross", "encoder", "decoder"), strict=True):
        torch.testing.assert_close(ours.probabilities, torch.cat(outputs[f"{theirs}_attentions"]))
        assert ours.probabilities.shape[2:] == (len(ours.rows), len(ours.columns))
    assert cross.columns == encoder.rows and len(cross.rows) == written.shape[1] - 1


@pytest.mark.parametrize("kind", ["classify", "entities", "causal", "mlm", "embed", "rerank"])
def test_attention(kind, client_of, directory_of):
    """Every row of a table sums to one, and the answers after it are those before it."""
    trial, given = load_trial(str(directory_of(kind)), "cpu"), PAIRS[0] if kind == "rerank" else TEXTS[0]
    before = trial.answer([given])
    (maps,) = trial.attention(given)
    assert trial.answer([given]) == before
    assert maps.rows == maps.columns and "afinefilm" in "".join(maps.rows).replace("·", "")
    for head in (None, 0, 3):
        cells = re.findall(r'title="([^"]*)"', attention_table(maps, 1, head))
        sums = torch.tensor(list(map(float, cells))).view(len(maps.rows), -1).sum(1)
        assert len(cells) == len(maps.rows) ** 2 and sums.tolist() == pytest.approx([1] * len(sums), abs=0.02)
    with pytest.raises(InputError, match="head 5: the self-attention has 4 heads"):
        attention_table(maps, 1, 4)


def test_attention_of_a_long_text(directory_of):
    """A row of the table sums to one only over the columns that are not shown as well, and the note says so."""
    trial = load_trial(str(directory_of("embed")), "cpu")
    trial.saved.tokenizer.model_max_length = 100
    (maps,) = attention_maps(trial.predictor, ["fine " * 99], {})
    assert maps.probabilities.shape[2:] == (SHOWN_TOKENS, SHOWN_TOKENS) and maps.lengths == (100, 100)
    assert "a row sums to 1 over all 100 columns. The first 64 tokens are shown." in attention_table(maps, 0, None)


def test_attention_on_the_page(client_of):
    client = client_of("seq2seq")
    shown = client.predict("cross-attention, layer 1", "head 1", "<b>&", "", "", api_name="/attention")
    assert shown.startswith('<div class="attention">') and "<b>" not in shown and "→" in shown
    with pytest.raises(AppError, match="is not in the list of choices"):
        client.predict("encoder, layer 3", "head 1", TEXTS[0], "", "", api_name="/attention")


def test_mistakes_are_told_to_visitors(client_of):
    for kind, values, message in (
        ("classify", [" "], "a box is empty"),
        ("mlm", ["a film"], r"has no \[MASK\]"),
        ("seq2seq", ["a", "2", "5000"], "--max_new_tokens=5000 must be at most 1024"),
        ("seq2seq", ["a", "0", ""], "--beams=0 must be at least 1"),
        ("seq2seq", ["a", "1.5", ""], "--beams=1.5 must be a whole number"),
        ("classify", ["a" * 20_001], "a text of 20001 characters; this page takes 20000"),
    ):
        with pytest.raises(AppError, match=message):
            client_of(kind).predict(*values, api_name="/answer")
    with pytest.raises(AppError, match="1001 texts; this page takes 1000 at once"):
        client_of("classify").predict("a\n" * 1001, api_name="/table")


def test_truncated_texts_are_told_to_visitors(client_of, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr("gradio.Warning", told.append)
    client_of("classify").predict("fine " * 60, api_name="/answer")
    assert "1 lines are truncated to 48 tokens" in told
