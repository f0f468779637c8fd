"""The command `app`, and folders for the Hub's Spaces, run as the Hub runs them: by themselves,
with their code."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from conftest import ROOT
from huggingface_hub import SpaceCard

pytest.importorskip("gradio", reason="the extra app is not installed")

from gradio_client import Client  # noqa: E402
from saved_models import TEXTS, save_model  # noqa: E402

from roformer_lite.app.space import write_space  # noqa: E402
from roformer_lite.cli import main  # noqa: E402

# Runs before anything else in a process, and tries its own refusal first.
START = """
import os, socket
from loopback import refuse_other_hosts
refuse_other_hosts(lambda name: open(os.environ["OTHER_HOSTS"], "a").write(name))
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError as error:
    assert "may not reach" in str(error)
os.unlink(os.environ["OTHER_HOSTS"])
"""


@pytest.mark.slow
def test_a_space_runs_by_itself(tmp_path):
    """In its own folder, with the usual environment, and reaches nobody."""
    model, out = save_model("tag", tmp_path / "names"), tmp_path / "space"
    assert main(["app", str(model), "--space", str(out)]) == 0
    shutil.rmtree(model)
    shutil.copy(ROOT / "tests" / "app" / "loopback.py", out)
    (out / "sitecustomize.py").write_text(START)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GRADIO_"))
    }
    environment |= {
        "PYTHONPATH": str(out),
        "GRADIO_SERVER_PORT": str(port),
        "OTHER_HOSTS": str(tmp_path / "others"),
    }
    place = [
        sys.executable,
        "-c",
        "import hf_roformer_lite.conversion as package; print(package.__file__)",
    ]
    found = subprocess.run(
        place, cwd=out, env=environment, capture_output=True, text=True, timeout=120
    )
    assert Path(found.stdout.strip()).is_relative_to(out), found.stderr
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "app.py"], cwd=out, env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 300
        with socket.socket() as asked:
            while asked.connect_ex(("127.0.0.1", port)):
                assert server.poll() is None and time.monotonic() < deadline, (
                    tmp_path / "log"
                ).read_text()
                time.sleep(0.2)
        client = Client(f"http://127.0.0.1:{port}", verbose=False, analytics_enabled=False)
        spans, _ = client.predict(TEXTS[3], api_name="/answer")
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert "".join(span["token"] for span in spans).split() == TEXTS[3].split()
    assert not (tmp_path / "others").exists(), (tmp_path / "others").read_text()


def test_what_is_in_a_space(tmp_path, capsys):
    """Without what a training leaves; a directory may have any name, and app.py stays one call."""
    name = 'we"""; import os; os.system("echo PWNED"); """ird\n---\n# b'
    model = save_model("embed", tmp_path / name)
    (model / "checkpoint-5").mkdir()
    (model / "optimizer.pt").write_text("pickled")
    out = write_space(str(model), str(tmp_path / "space"), TEXTS)
    assert {path.name for path in (out / "model").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "results.json",
    }
    assert (
        not (out / "model" / "checkpoint-5").exists()
        and not (out / "model" / "optimizer.pt").exists()
    )
    card = SpaceCard.load(out / "README.md").data.to_dict()
    pins = dict(line.split("==") for line in (out / "requirements.txt").read_text().splitlines())
    title = " ".join(name.split())
    assert {"title": title, "sdk": "gradio", "app_file": "app.py"}.items() <= card.items()
    assert card["sdk_version"] == pins["gradio"] and {
        "torch",
        "transformers",
        "sentence-transformers",
    } <= set(pins)
    opened = mock.Mock()
    code = (
        (out / "app.py")
        .read_text("utf-8")
        .replace("from roformer_lite.app.page import open_page", "")
    )
    exec(code, {"__file__": str(out / "app.py"), "open_page": opened})
    assert opened.call_args == mock.call(str(out / "model"), title=title, texts=TEXTS)
    assert "PWNED" not in capsys.readouterr().out
