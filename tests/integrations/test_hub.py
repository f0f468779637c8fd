"""To the Hub and back: the real client over HTTP, against a server on loopback."""

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
    """Whether node is here, and the package where NODE_PATH says."""
    node = shutil.which("node")
    found = node and subprocess.run(
        [node, "-e", "require('@huggingface/transformers')"], capture_output=True
    )
    return bool(found) and found.returncode == 0


@pytest.mark.slow
def test_to_the_hub_and_back(tmp_path):
    """Processes: one uploads and checks what comes back; one has no package, and runs the code of
    the repository, by Auto classes and by `pipeline`; one is the uploaded card's own snippet; node
    runs the graph beside the weights."""

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
        # each upload one commit
        assert hub.repositories["me/pair"].titles == ["The first", "Upload tokenizer"]
        assert "modeling_roformer_lite.py" in hub.files("me/pair") and "README.md" in hub.files(
            "me/pair"
        )
        site_packages = [path for path in sys.path if path.endswith("site-packages")]
        without = ROOT / "tests" / "model" / "session_without_package.py"
        run(sys.executable, "-I", "-S", without, "hub", tmp_path, *site_packages)
        if has_transformers_js():  # with the graph that `export` wrote, beside the weights
            text, expected = json.loads((tmp_path / "pipelines.json").read_text("utf-8"))[
                "me/reviews"
            ]
            script = ROOT / "tests" / "integrations" / "classify_from_hub.cjs"
            (found,), (answer,) = json.loads(run("node", script, "me/reviews", text)), expected
            assert found["label"] == answer["label"] and found["score"] == pytest.approx(
                answer["score"], abs=2e-4
            )
        assert 'from_pretrained("me/reviews")' in (tmp_path / "snippet.py").read_text()
        assert run(sys.executable, tmp_path / "snippet.py").strip() in ("good", "bad")
