"""Every block of the README runs, in order, in one directory."""

import base64
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

README = Path(__file__).parent.parent / "README.md"
CONVERSION = README.parent / "conversion" / "README.md"


def blocks_of(path: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


BLOCKS = blocks_of(README)


class Hub(BaseHTTPRequestHandler):
    """As much of a Hub as an upload needs, on loopback: all files come inside the commit."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        here = f"http://127.0.0.1:{self.server.server_port}/me/dates"
        answer: dict = {"url": here, "commitUrl": f"{here}/commit/0", "commitOid": "0" * 40}
        if self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            answer = {"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]}
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        self._answer(200, answer)

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            self._answer(200, {"id": "me/dates", "sha": "0" * 40, "siblings": [], "auth": {}})
        else:
            self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def _answer(self, status: int, answer: dict, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": len(body), **(headers or {})}
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args) -> None:
        return None


@pytest.fixture(scope="module")
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files = {}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    rows = [("a house", "ein Haus"), ("a dog", "ein Hund"), ("two dogs", "zwei Hunde"), ("two houses", "zwei Häuser")]
    (folder / "train.tsv").write_text("en\tde\n" + "".join(f"{en}\t{de}\n" for en, de in rows * 5), "utf-8")
    reviews = "".join(f"{text},{label}\n" for text, label in [("fine film", "good"), ("too long", "bad")] * 10)
    (folder / "reviews.csv").write_text("text,label\n" + reviews, "utf-8")
    (folder / "text.txt").write_text("".join(f"line {n} says that {n} is a number\n" for n in range(60)), "utf-8")
    return folder


@pytest.mark.parametrize("number", [n for n, (language, _) in enumerate(BLOCKS) if language == "python"])
def test_python_block(number, directory, hub):
    code = BLOCKS[number][1]
    environment = {**os.environ, "HF_TOKEN": "hf_test"}
    if "push_to_hub" in code:
        environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", code]
    if "distributed_config" in code:
        (directory / "shards.py").write_text(code, "utf-8")
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        command = [sys.executable, *launcher, "shards.py"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    if "generate(" in code:
        assert len(done.stdout.split("', '")) == 2
    if "distributed_config" in code:
        before, after = (load_file(directory / name / "model.safetensors") for name in ("dates", "dates-again"))
        assert all(torch.equal(after[name], weight) for name, weight in before.items())
    if "push_to_hub" in code:
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= hub.files.keys()
        assert hub.files["model.safetensors"] == (directory / "dates" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("code", [code for language, code in blocks_of(CONVERSION) if language == "python"])
def test_block_of_conversion(code):
    exec(compile(code, str(CONVERSION), "exec"), {})


def test_command_line_block(directory):
    """The block of `roformer-lite` commands."""
    (commands,) = [
        code for language, code in BLOCKS if language == "bash" and "venv" not in code and "--machine_rank" not in code
    ]
    script = commands.replace("roformer-lite ", f"{sys.executable} -m hf_roformer_lite.cli ")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=directory, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    for name in ("translator", "reviews", "masked-lm"):
        saved = {path.name for path in (directory / name).iterdir()}
        assert {"model.safetensors", "tokenizer.json", "config.json", "README.md", "loss_curve.png"} <= saved


def test_set_up_commands_are_one_line_each():
    commands = [code for language, code in BLOCKS if language == "bash" and "venv" in code]
    assert len(commands) == 2 and all(code.count("\n") == 1 for code in commands)
    assert all(path.exists() for path in (README.parent / "constraints.txt", README.parent / ".ci" / "run"))
