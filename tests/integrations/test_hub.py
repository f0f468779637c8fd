"""To the Hub and back: the real client over HTTP, against a server on loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hub_server import ENVIRONMENT, HubServer, running_hub


@pytest.fixture(scope="module")
def hub():
    with running_hub() as server:
        yield server


@pytest.fixture(scope="module")
def environment(hub, tmp_path_factory) -> dict[str, str]:
    """Of a client that knows this Hub alone and starts with nothing."""
    home = str(tmp_path_factory.mktemp("home"))
    return {**os.environ, **ENVIRONMENT, "HF_ENDPOINT": hub.url, "HF_HOME": home}


def run(environment: dict[str, str], *command: str | Path) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def session(hub: HubServer, environment, tmp_path_factory) -> Path:
    """Everything that is uploaded; the session itself checks what comes back."""
    folder = tmp_path_factory.mktemp("session")
    run(environment, sys.executable, Path(__file__).with_name("session_hub.py"), folder)
    return folder


def test_what_the_hub_received(hub, session):
    """Weights over LFS and text inside commits, nothing twice, and each upload one commit."""
    pair = hub.repositories["me/pair"]
    assert pair.private
    assert [commit.title for commit in pair.branches["main"]][:3] == ["initial", "The first", "Upload tokenizer"]
    assert {name for name, file in hub.files("me/pair").items() if file.is_lfs} == {"model.safetensors"}
    assert "modeling_roformer_lite.py" in hub.files("me/pair")
    uploads = [request for request in hub.requests if request.startswith("PUT ")]
    assert len(uploads) == len(set(uploads)) == len(hub.objects)
    downloads = [r for r in hub.requests if r.startswith("GET /objects/")]
    assert len(downloads) == len(set(downloads))  # the client's cache knows them by their hash


def test_card_snippet_runs(environment, session):
    """The uploaded card's own code, in a fresh process, with the name of the repository."""
    assert 'from_pretrained("me/reviews")' in (session / "snippet.py").read_text()
    assert run(environment, sys.executable, session / "snippet.py").strip() in ("good", "bad")


def test_remote_code_from_the_hub(environment, session):
    """Without the package: the code comes from the repository."""
    site_packages = [path for path in sys.path if path.endswith("site-packages")]
    script = ROOT / "tests/model/session_without_package.py"
    run(environment, sys.executable, "-I", "-S", script, "hub", session, *site_packages)
