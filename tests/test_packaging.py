"""What is built and installed: the distributions and their metadata, help of every public name, and
the reference."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

import hf_roformer_lite

PUBLIC = [name for name in hf_roformer_lite.__all__ if name != "__version__"]
NOT_COPIED = (".*", "__pycache__", "*.egg-info", "build", "dist", "docs", "model_cards", "results")
DATA = {"hf_roformer_lite/py.typed", "roformer_lite/py.typed"}
DATA |= {f"roformer_lite/train/model_card_{name}.md.jinja" for name in ("template", "seeds")}
USE = """
import torch, transformers, hf_roformer_lite, hf_roformer_lite.conversion, roformer_lite
config = hf_roformer_lite.RoFormerLiteConfig.from_preset("tiny", vocab_size=50)
model = transformers.AutoModelForMaskedLM.from_config(config).eval()
model.save_pretrained("model")
again, ids = transformers.AutoModelForMaskedLM.from_pretrained("model"), torch.tensor([[5, 6, 7]])
assert torch.equal(model(ids).logits, again(ids).logits)
print(*(module.__file__ for module in (hf_roformer_lite, hf_roformer_lite.conversion, roformer_lite)), sep="\\n")
"""


def run(*command: object, folder: Path) -> str:
    """What a command prints that is run in `folder`, without the paths of this process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The `sdist`, the `wheel` that is made from it, and the wheel of the `tree` itself."""
    folder = tmp_path_factory.mktemp("built")
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_COPIED))
    build = (sys.executable, "-m", "build", "--no-isolation")
    run(*build, "--outdir", folder / "both", folder=source)
    run(*build, "--wheel", "--outdir", folder / "tree", folder=source)
    found = {"sdist": "both/*.tar.gz", "wheel": "both/*.whl", "tree": "tree/*.whl"}
    return {name: next(folder.glob(pattern)) for name, pattern in found.items()}


def test_distributions_are_accepted_by_an_index(built):
    run(
        sys.executable,
        "-m",
        "twine",
        "check",
        "--strict",
        built["sdist"],
        built["wheel"],
        folder=ROOT,
    )


def test_distributions_are_whole_and_nothing_else_is_in_them(built):
    packages = ("hf_roformer_lite", "roformer_lite")
    modules = {
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
    }
    modules |= {
        f"hf_roformer_lite/conversion/{path.name}" for path in (ROOT / "conversion").glob("*.py")
    }
    contents = []
    for name in ("wheel", "tree"):
        with zipfile.ZipFile(built[name]) as wheel:
            contents.append({file.filename: file.CRC for file in wheel.infolist()})
    assert contents[0] == contents[1]
    assert {name for name in contents[0] if ".dist-info/" not in name} == modules | DATA
    with tarfile.open(built["sdist"]) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= packed
    assert not [name for name in packed if name.startswith(("tests", "benchmarks"))]


@pytest.mark.slow
def test_installed_wheel_works_away_from_the_checkout(built, tmp_path):
    """In an environment of its own, with the packages that are here; that of the sdist has the same
    contents."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python, command = environment / "bin" / "python", environment / "bin" / "roformer-lite"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, built["wheel"], folder=tmp_path)
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "others.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("-packages")), "utf-8"
    )
    assert "train" in run(command, "--help", folder=tmp_path)
    used = run(python, "-c", USE, folder=tmp_path).splitlines()[-3:]
    assert all(path.startswith(str(packages)) for path in used), used
    (tmp_path / "text.txt").write_text("one two three four\n\n" * 60, "utf-8")
    options = ("--size", "tiny", "--vocab_size", "300", "--block_size", "16", "--max_steps", "1")
    run(
        command,
        "train",
        "causal",
        "--train_file",
        "text.txt",
        "--output_dir",
        "story",
        *options,
        folder=tmp_path,
    )
    # the card, whose template is data of the package
    assert (tmp_path / "story" / "README.md").is_file()


def test_reference_builds_without_warnings(tmp_path):
    """`strict` in mkdocs.yml makes every warning an error."""
    run(
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "-q",
        "-f",
        ROOT / "mkdocs.yml",
        "-d",
        tmp_path,
        folder=ROOT,
    )
    pages = "".join(page.read_text("utf-8") for page in tmp_path.glob("*.html"))
    assert not [name for name in (*PUBLIC, "export_model") if f'.{name}"' not in pages]
