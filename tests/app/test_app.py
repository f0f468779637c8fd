"""The page shows the answers of `predict`, and its server takes no files and calls nobody."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gradio", reason="the extra app is not installed")

import gradio  # noqa: E402
import httpx  # noqa: E402
from gradio_client import Client  # noqa: E402
from gradio_client.exceptions import AppError  # noqa: E402
from program import answered  # noqa: E402
from saved_models import TEXTS, save_model  # noqa: E402

from roformer_lite.answers import open_model  # noqa: E402
from roformer_lite.commands.app import open_page, page_of  # noqa: E402

LINES = {
    "classify": TEXTS[0],
    "number": TEXTS[1],
    "pairs": "a fine film\tfar too long",
    "tag": TEXTS[3],
    "seq2seq": TEXTS[0],
    "causal": TEXTS[0],
    "mlm": "a [MASK] film in [MASK]",
    "embed": TEXTS[0],
}


def page_of_kind(kind: str, folder: Path) -> gradio.Interface:
    return page_of(open_model(save_model(kind, folder / kind), device="cpu"), title=kind)


@pytest.mark.parametrize("kind", LINES)
def test_answers_are_those_of_predict(kind, tmp_path):
    page = page_of_kind(kind, tmp_path)
    (endpoint,) = [one for one in page.fns.values() if one.api_name == "predict"]
    texts = LINES[kind].split("\t")
    assert len(endpoint.inputs) == len(texts)
    assert endpoint.fn(*texts) == answered(tmp_path / kind, [LINES[kind]])[0]


def test_a_tab_in_a_box_is_text(tmp_path):
    page = page_of_kind("pairs", tmp_path)
    (endpoint,) = [one for one in page.fns.values() if one.api_name == "predict"]
    assert endpoint.fn(" one\ttwo", "three") == endpoint.fn("one\ttwo", "three ") != ""


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Iterator[Client]:
    """A client of a classifier's page, which looks up no other host."""
    asked = set()
    look_up = socket.getaddrinfo

    def recorded(host, *arguments, **options):
        asked.add(host)
        return look_up(host, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", recorded)
        page = page_of_kind("classify", tmp_path_factory.mktemp("app"))
        open_page(page)
        yield Client(page.local_url, verbose=False, analytics_enabled=False)
        page.close()
    assert asked <= {"127.0.0.1", "localhost", None}


def test_the_page(client, tmp_path):
    model = save_model("classify", tmp_path / "classify")
    shown = client.predict(text=TEXTS[0], api_name="/predict")
    assert [shown] == answered(model, [TEXTS[0]])
    assert client.config["analytics_enabled"] is False
    assert client.src.startswith("http://127.0.0.1:")


def test_mistakes_are_reported_to_visitors(client):
    with pytest.raises(AppError, match="a box is empty"):
        client.predict(text=" ", api_name="/predict")


def test_no_file_is_taken(client):
    api = f"{client.src}gradio_api"
    answer = httpx.post(f"{api}/upload", files={"files": ("a.txt", b"text")}, timeout=60)
    assert answer.status_code == 413
    assert httpx.get(f"{api}/file=/etc/passwd", timeout=60).status_code == 403
