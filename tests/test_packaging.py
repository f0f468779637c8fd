"""What an installed package offers besides its models: types, help, a reference, and transformers' own commands."""

import os
import pydoc
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT
from transformers import AutoConfig

import hf_roformer_lite
from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig

PUBLIC = [name for name in hf_roformer_lite.__all__ if name != "__version__"]


def test_wheel_is_whole_and_typed(tmp_path):
    source = tmp_path / "source"
    for folder in ("hf_roformer_lite", "roformer_lite", "conversion"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    packages = ("hf_roformer_lite", "roformer_lite")
    modules = {str(path.relative_to(ROOT)) for package in packages for path in (ROOT / package).rglob("*.py")}
    modules |= {f"hf_roformer_lite/conversion/{path.name}" for path in (ROOT / "conversion").glob("*.py")}
    assert modules | {"hf_roformer_lite/py.typed", "roformer_lite/train/model_card_template.md.jinja"} <= packed


@pytest.mark.parametrize("name", PUBLIC)
def test_help(name):
    text = pydoc.plain(pydoc.render_doc(getattr(hf_roformer_lite, name)))
    summary = getattr(hf_roformer_lite, name).__doc__.strip().splitlines()[0]
    assert summary in text and name in text.splitlines()[0]


def test_reference_builds_without_warnings(tmp_path):
    """`strict` in mkdocs.yml makes every warning an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = "".join(page.read_text("utf-8") for page in tmp_path.glob("*.html"))
    assert not [name for name in (*PUBLIC, "export_model") if f'.{name}"' not in pages]


def test_auto_config_by_name():
    assert AutoConfig.for_model("roformer_lite", hidden_size=64) == RoFormerLiteConfig(hidden_size=64)
    assert type(AutoConfig.for_model("roformer_lite_seq2seq")) is RoFormerLiteSeq2SeqConfig


def test_transformers_env():
    code = "import hf_roformer_lite, sys; sys.argv = ['transformers', 'env']\n"
    code += "from transformers.cli.transformers import app; app()"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "`transformers` version" in done.stdout, done.stderr
