"""The distributions that are built and installed, their metadata, and the reference."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from conftest import LIBRARIES, ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import hf_roformer_lite

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PUBLIC = [name for name in hf_roformer_lite.__all__ if name != "__version__"]
NOT_COPIED = ".git .site .venv* .*_cache .transformers-* __pycache__".split()
NOT_COPIED += ("*.egg-info", "build", "dist", "results")
URL = "https://example.org/owner/repository"
DATA = {"hf_roformer_lite/py.typed", "roformer_lite/py.typed"}
DATA |= {
    f"roformer_lite/training/model_card_{name}.md.jinja" for name in ("template", "seeds", "code")
}
USE = """
import torch, transformers, hf_roformer_lite, hf_roformer_lite.conversion, roformer_lite
config = hf_roformer_lite.RoFormerLiteConfig.from_preset("tiny", vocab_size=50)
model = transformers.AutoModelForMaskedLM.from_config(config).eval()
model.save_pretrained("model")
again = transformers.AutoModelForMaskedLM.from_pretrained("model")
ids = torch.tensor([[5, 6, 7]])
assert torch.equal(model(ids).logits, again(ids).logits)
for module in (hf_roformer_lite, hf_roformer_lite.conversion, roformer_lite):
    print(module.__file__)
"""

# These packages are installed into environments of their own.
ELSEWHERE = {"vllm"}


IMPORT = r"(?:import (\w+)(?:\.\w+)*(?: as \w+)?$|from (\w+)[\w.]* import )"


def distributions_of(paths: list[Path], indent: str = r"[ >]*") -> set[str]:
    """The distributions by other authors that these files import after such an indent."""
    own = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    own |= {"hf_roformer_lite", "roformer_lite", "benchmarks"}
    text = "\n".join(path.read_text("utf-8") for path in paths)
    found = re.findall(f"^{indent}{IMPORT}", text, re.MULTILINE)
    imported = {one or other for one, other in found}
    installed = packages_distributions()
    foreign = imported - set(sys.stdlib_module_names) - own - ELSEWHERE
    return {canonicalize_name(installed.get(name, [name])[0]) for name in foreign}


def names_of(requirements: list[str]) -> set[str]:
    return {canonicalize_name(re.match(r"[\w-]+", line)[0]) for line in requirements}


def test_every_imported_package_is_declared():
    """A package that the plugin imports at once is a dependency, and any other is in an extra."""
    required = names_of(PROJECT["dependencies"])
    plugin = [*(ROOT / "hf_roformer_lite").rglob("*.py"), *(ROOT / "conversion").glob("*.py")]
    assert {"torch", "transformers"} <= distributions_of(plugin, indent="") <= required
    extras = names_of(sum(PROJECT["optional-dependencies"].values(), []))
    folders = "roformer_lite tests benchmarks tutorials examples docs".split()
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {"pyyaml", "scikit-learn"} <= distributions_of([*plugin, *files]) <= required | extras


def test_every_file_names_the_same_version_and_date():
    version = hf_roformer_lite.__version__
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (date,) = re.findall(rf"^## \[{re.escape(version)}\] - ([\d-]+)$", changes, re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == version
    assert str(citation["date-released"]) == date
    assert citation["license"] == PROJECT["license"]


def test_every_lower_bound_is_tested():
    """CI installs all lower bounds of pyproject.toml at once."""
    extras = PROJECT["optional-dependencies"].values()
    requirements = map(Requirement, [*PROJECT["dependencies"], *sum(extras, [])])
    lowest = {
        (canonicalize_name(requirement.name), Version(bound.version))
        for requirement in requirements
        for bound in requirement.specifier
        if bound.operator == ">="
    }
    lines = (ROOT / "constraints-oldest.txt").read_text("utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert lowest == {(canonicalize_name(name), Version(version)) for name, version in pins}


def run(*command: object, folder: Path) -> str:
    """The output of a command that runs in `folder`, without the `PYTHONPATH` of this process."""
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
    """The `sdist`, the `wheel` that is built from it, and the wheel of the `tree` itself."""
    folder = tmp_path_factory.mktemp("built")
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_COPIED))
    run(sys.executable, ".ci/name_repository.py", URL, "v1", folder=source)
    build = (sys.executable, "-m", "build", "--no-isolation")
    run(*build, "--outdir", folder / "both", folder=source)
    run(*build, "--wheel", "--outdir", folder / "tree", folder=source)
    found = {"sdist": "both/*.tar.gz", "wheel": "both/*.whl", "tree": "tree/*.whl"}
    return {name: next(folder.glob(pattern)) for name, pattern in found.items()}


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
    assert [name for name in contents[0] if name.endswith(".dist-info/licenses/LICENSE")]
    with tarfile.open(built["sdist"]) as sdist:
        found = {name.split("/")[1] for name in sdist.getnames() if "/" in name}
    assert {"LICENSE", "docs", "examples", "tests"} <= found


def test_metadata_name_licence_and_repository(built):
    """The long description has no link that only a checkout could follow."""
    with zipfile.ZipFile(built["wheel"]) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = wheel.read(name).decode()
    header, _, description = metadata.partition("\n\n")
    assert "\nLicense-Expression: Apache-2.0\n" in header
    assert f"\nProject-URL: Repository, {URL}\n" in header
    links = re.findall(r"\]\(([^)\s]+)\)", description)
    assert f"{URL}/blob/v1/docs/index.md" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.slow
def test_installed_wheel_works_away_from_the_checkout(built, tmp_path):
    """The wheel is installed into a new environment, which sees the other packages of this one.

    The wheel that is built from the sdist has the same contents, so one of them is enough."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    command = environment / "bin" / "roformer-lite"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, built["wheel"], folder=tmp_path)
    (packages,) = environment.glob("lib/*/site-packages")
    (packages / "others.pth").write_text("\n".join(LIBRARIES), "utf-8")
    assert "train" in run(command, "--help", folder=tmp_path)
    used = run(python, "-c", USE, folder=tmp_path).splitlines()[-3:]
    assert all(path.startswith(str(packages)) for path in used), used


def test_reference_builds_without_warnings(tmp_path):
    """`strict` in mkdocs.yml makes every warning an error."""
    mkdocs = (sys.executable, "-m", "mkdocs")
    run(*mkdocs, "build", "-q", "-f", ROOT / "mkdocs.yml", "-d", tmp_path, folder=ROOT)
    pages = "".join(page.read_text("utf-8") for page in tmp_path.glob("*.html"))
    assert not [name for name in (*PUBLIC, "export_model") if f'.{name}"' not in pages]
    listed = re.findall(r"\]\((.*?)\)", (tmp_path / "llms.txt").read_text("utf-8"))
    assert not [name for name in listed if not (tmp_path / name).is_file()]
