"""Every block of the README runs, in order, in one directory."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from hub_server import ENVIRONMENT, running_hub
from safetensors.torch import load_file

README = ROOT / "README.md"
CONVERSION = ROOT / "conversion" / "README.md"


def blocks_of(path: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


BLOCKS = blocks_of(README)


@pytest.fixture(scope="module")
def hub():
    with running_hub() as server:
        yield server


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
    environment, options, prelude = dict(os.environ), [], ""
    if '"me/' in code:
        environment |= {**ENVIRONMENT, "HF_ENDPOINT": hub.url, "HF_HOME": str(directory / "home")}
    if "trust_remote_code" in code:  # shown to those who have not installed the package
        options = ["-I", "-S"]
        paths = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        prelude = f"import sys; sys.path += {paths}; sys.modules['hf_roformer_lite'] = None\n"
    command = [sys.executable, *options, "-c", prelude + code]
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
    for name in re.findall(r'push_to_hub\("([^"]*)"', code):
        there = hub.files(name)
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= there.keys()
        assert there["model.safetensors"].content == (directory / "dates" / "model.safetensors").read_bytes()


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
