"""Models go to the Hub and back by the real client, over HTTP, with a server on loopback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hub_server import ENVIRONMENT, running_hub


@pytest.mark.slow
def test_to_the_hub_and_back(tmp_path):
    """Several processes use the Hub, one after the other.

    The first one uploads, and checks the files that come back. The second one has no package, and
    runs the code of the repository by Auto classes and by `pipeline`. The last process runs the
    snippet of the card."""

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
        assert 'from_pretrained("me/reviews")' in (tmp_path / "snippet.py").read_text()
        assert run(sys.executable, tmp_path / "snippet.py").strip() in ("good", "bad")
