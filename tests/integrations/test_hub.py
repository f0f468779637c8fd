"""Models go to the Hub and back by the real client, over HTTP, with a server on loopback."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hub_server import ENVIRONMENT, running_hub


def has_transformers_js() -> bool:
    """Whether node is installed, and finds the package in the folders of NODE_PATH."""
    node = shutil.which("node")
    if node is None:
        return False
    command = [node, "-e", "require('@huggingface/transformers')"]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
def test_to_the_hub_and_back(tmp_path):
    """Several processes use the Hub, one after the other.

    The first one uploads, and checks the files that come back. The second one has no package, and
    runs the code of the repository by Auto classes and by `pipeline`. Then node runs the graph
    that is uploaded next to the weights, and the last process runs the snippet of the card."""

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    with running_hub() as hub:
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "home"),
        }
        run(sys.executable, Path(__file__).with_name("session_hub.py"), tmp_path)
        # Each upload makes one commit.
        assert hub.repositories["me/pair"].titles == ["The first", "Upload tokenizer"]
        files = hub.files("me/pair")
        assert "modeling_roformer_lite.py" in files and "README.md" in files
        site_packages = [path for path in sys.path if path.endswith("site-packages")]
        without = ROOT / "tests" / "model" / "session_without_package.py"
        run(sys.executable, "-I", "-S", without, "hub", tmp_path, *site_packages)
        if has_transformers_js():
            # The package runs the graph that `export` wrote next to the weights.
            all_expected = json.loads((tmp_path / "pipelines.json").read_text("utf-8"))
            text, (answer,) = all_expected["me/reviews"]
            script = ROOT / "tests" / "integrations" / "classify_from_hub.cjs"
            (found,) = json.loads(run("node", script, "me/reviews", text))
            score = pytest.approx(answer["score"], abs=2e-4)
            assert found["label"] == answer["label"] and found["score"] == score
        assert 'from_pretrained("me/reviews")' in (tmp_path / "snippet.py").read_text()
        assert run(sys.executable, tmp_path / "snippet.py").strip() in ("good", "bad")
