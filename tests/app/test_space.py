"""Folders for the Hub's Spaces, run as the Hub runs them: in their own directory, with the code in it."""

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import ROOT
from huggingface_hub import SpaceCard

pytest.importorskip("gradio", reason="the extra app is not installed")

from gradio_client import Client  # noqa: E402
from tiny_models import TEXTS, save_model  # noqa: E402

from roformer_lite.app.space import write_space  # noqa: E402
from roformer_lite.cli import main  # noqa: E402
from roformer_lite.commands.predictor import Predictor  # noqa: E402
from roformer_lite.commands.required_packages import TRAINING_PACKAGES  # noqa: E402

# A Space has what its requirements name and Gradio brings along, and no more.
NOT_THERE = sorted({*TRAINING_PACKAGES, "sentence_transformers", "peft", "onnxruntime"} - {"jinja2", "rich"})
START = f"""
import sys
sys.modules.update(dict.fromkeys({NOT_THERE!r}))
from loopback import refuse_other_hosts
refuse_other_hosts()
"""


@contextmanager
def running(command: list[str], folder: Path, tmp_path: Path):
    """The address of a page in a process of its own, which can reach this machine alone: `sitecustomize` runs before
    anything else, and its refusal is tried first."""
    (tmp_path / "start").mkdir(exist_ok=True)
    (tmp_path / "start" / "sitecustomize.py").write_text(START)
    shutil.copy(ROOT / "tests" / "app" / "loopback.py", tmp_path / "start")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GRADIO_"))}
    environment |= {"PYTHONPATH": str(tmp_path / "start"), "GRADIO_SERVER_PORT": port}
    environment |= {"OTHER_HOSTS": str(tmp_path / "other_hosts"), "MPLBACKEND": "agg"}
    far = [sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 80))"]
    assert subprocess.run(far, env=environment, stderr=subprocess.DEVNULL, timeout=60).returncode == 1
    assert (tmp_path / "other_hosts").read_text() == "192.0.2.1\n"
    (tmp_path / "other_hosts").unlink()
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 300
            while not _listens(int(port)):
                assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.communicate(timeout=60)
    assert not (tmp_path / "other_hosts").exists(), (tmp_path / "other_hosts").read_text()


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_a_space_runs_by_itself(tmp_path, capsys):
    model = save_model("entities", tmp_path / "names")
    (model / "README.md").write_text("---\nlicense: mit\n---\n# Names\n")
    (model / "checkpoint-5").mkdir()
    (model / "optimizer.pt").write_text("pickled")
    out = tmp_path / "space"
    assert main(["app", str(model), "--space", str(out)]) == 0
    assert "hf upload" in capsys.readouterr().out
    assert not [name for name in ("checkpoint-5", "optimizer.pt") if (out / "model" / name).exists()]
    shutil.rmtree(model)
    card = SpaceCard.load(out / "README.md").data.to_dict()
    pins = dict(line.split("==") for line in (out / "requirements.txt").read_text().splitlines())
    assert {"title": "names", "sdk": "gradio", "app_file": "app.py", "license": "mit"}.items() <= card.items()
    assert card["sdk_version"] == pins["gradio"] and {"torch", "transformers", "tokenizers"} <= set(pins)
    place = "import hf_roformer_lite.conversion as package; print(package.__file__)"
    found = subprocess.run([sys.executable, "-c", place], cwd=out, capture_output=True, text=True, timeout=120)
    assert Path(found.stdout.strip()).is_relative_to(out), found.stderr
    with running([sys.executable, "app.py"], out, tmp_path) as address:
        spans = Client(address, verbose=False, analytics_enabled=False).predict(TEXTS[3], api_name="/answer")
    assert "".join(span["token"] for span in spans) == TEXTS[3]
    tags = Predictor.load(str(out / "model"), "cpu").answer([TEXTS[3]], 1)[0].columns["tags"]
    assert {span["class_or_confidence"] for span in spans} - {None} == {tag[2:] for tag in tags} - {""}


def test_texts_go_with_a_space(tmp_path):
    model = save_model("embed", tmp_path / "vectors")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), "utf-8")
    assert main(["app", str(model), "--space", str(tmp_path / "space"), "--texts", str(tmp_path / "texts.txt")]) == 0
    assert (tmp_path / "space" / "texts.txt").read_text("utf-8").splitlines() == TEXTS
    assert "sentence-transformers==" in (tmp_path / "space" / "requirements.txt").read_text()

    licence = (ROOT / "LICENSE").read_text("utf-8")
    assert (tmp_path / "space" / "hf_roformer_lite" / "LICENSE").read_text("utf-8") == licence


STRANGE_NAMES = ['we"""; import os; os.system("echo PWNED"); """ird', "back\\N", "a\n---\n# b: [c](d)"]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_names_of_models_are_no_code(name, tmp_path):
    """Whatever a directory is called, app.py has the title as one string, and README.md has it in one line."""
    model = save_model("classify", tmp_path / "model").rename(tmp_path / name)
    out = write_space(str(model), tmp_path / "space")
    title = " ".join(name.split())
    source = f"""from pathlib import Path
from roformer_lite.app.launch import open_page
open_page(str(Path(__file__).with_name("model")), title={title!r})"""
    written = ast.parse((out / "app.py").read_text("utf-8"))
    assert ast.get_docstring(written).startswith("The page of a model:")
    assert ast.dump(ast.Module(written.body[1:], [])) == ast.dump(ast.parse(source))
    card = SpaceCard.load(out / "README.md")
    assert card.data.title == title and card.data.app_file == "app.py"
    heading, empty, _ = card.text.strip().split("\n", 2)
    assert heading.replace("\\", "") == f"# {title}".replace("\\", "") and empty == ""
    assert "[" not in heading.replace("\\[", "")


def test_links_in_a_model(tmp_path, capsys):
    """Those of the Hub's cache are of the model, others are not."""
    snapshot = tmp_path / "models--me--it" / "snapshots" / "0123"
    blobs = tmp_path / "models--me--it" / "blobs"
    save_model("classify", snapshot)
    blobs.mkdir()
    for path in list(snapshot.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(Path("../../blobs") / path.name)
    out = write_space(str(snapshot), tmp_path / "space")
    copies = list((out / "model").iterdir())
    assert {path.name for path in copies} == {path.name for path in blobs.iterdir()}
    assert not any(path.is_symlink() for path in copies)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("private")
    for target in (tmp_path / "secrets" / "key", tmp_path / "secrets", tmp_path / "nowhere", snapshot):
        (snapshot / "link").symlink_to(target)
        assert main(["app", str(snapshot), "--space", str(tmp_path / "refused")]) == 2
        assert f"{snapshot / 'link'}: a link to {target}, which is no file of the model" in capsys.readouterr().err
        (snapshot / "link").unlink()
    assert not (tmp_path / "refused").exists()


@pytest.mark.slow
def test_a_page_reaches_nobody(tmp_path):
    """The command itself, with the usual environment."""
    model = save_model("classify", tmp_path / "model")
    command = [
        sys.executable,
        "-m",
        "roformer_lite.cli",
        "app",
        str(model),
        "--device",
        "cpu",
        "--dtype",
        "bfloat16",
    ]
    with running(command, tmp_path, tmp_path) as address:
        shown = Client(address, verbose=False, analytics_enabled=False).predict(TEXTS[0], api_name="/answer")
    assert sum(one["confidence"] for one in shown["confidences"]) == pytest.approx(1, abs=0.01)
    assert f"http://127.0.0.1:{address.rpartition(':')[2]}" in (tmp_path / "log").read_text()


def test_what_is_refused(tmp_path, capsys, monkeypatch):
    model = save_model("classify", tmp_path / "model")
    (tmp_path / "texts.txt").write_text("a\n" * 1001)
    (tmp_path / "private.txt").write_text("a\n")
    texts = ["--texts", str(tmp_path / "private.txt")]
    refused = f"{' '.join(texts)}: this model is for classify, and compares no texts; leave the option out"
    (tmp_path / "empty").mkdir()
    exported = tmp_path / "exported"
    exported.mkdir()
    shutil.copy(model / "config.json", exported)
    (exported / "onnx").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command, message in (
            ([str(tmp_path / "modle")], "there is no such directory (did you mean"),
            ([str(tmp_path / "empty")], "no model can be loaded from"),
            ([str(exported)], "was exported for onnx: give --engine onnx"),
            ([str(model), "--port", port], f"--port {port}: no page can be opened there"),
            ([str(model), "--host", "192.0.2.1"], "--host 192.0.2.1: no page can be opened there"),
            ([str(model), "--dtype", "int8"], "--dtype int8 is unknown; choose one of float32"),
            ([str(model), "--texts", str(tmp_path / "texts.txt")], "1001 lines; the page compares 1000 at most"),
            ([str(model), *texts], refused),
            ([str(model), *texts, "--space", str(tmp_path / "space")], refused),
            ([str(model), "--space", str(model)], "exists already; choose a new directory"),
            ([str(model), "--space", "new", "--port", "80"], "--port 80 has no effect beside --space"),
            ([str(model), "--space", "new", "--engine", "onnx"], "a Space computes with torch"),
        ):
            assert main(["app", *command]) == 2
            error = capsys.readouterr().err
            assert message in error and error.splitlines()[-1].startswith("roformer-lite app: error: "), error
    assert not (tmp_path / "space").exists()
    monkeypatch.setattr("roformer_lite.errors.find_spec", lambda name: None)
    assert main(["app", str(model)]) == 2
    assert 'a page needs gradio; install them with pip install "hf_roformer_lite[app]"' in capsys.readouterr().err
    assert json.loads((model / "results.json").read_text())["task"] == "classify"
