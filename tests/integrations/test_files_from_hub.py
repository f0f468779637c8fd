"""The files of a checkpoint come from the Hub with few requests, and from the cache without it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_server import ENVIRONMENT, HubServer, Repository, running_hub
from saved_models import save_bert, save_model

import hf_roformer_lite as rl
from hf_roformer_lite.conversion import ConvertedModel

pytestmark = pytest.mark.slow

LINES = "one two\nthree\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A classifier in several shards."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_model("classify", folder)
    loaded = rl.RoFormerLiteForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    loaded.save_pretrained(folder, max_shard_size="12KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    # Repositories have the weights in further forms, which are not needed.
    (folder / "pytorch_model.bin").write_bytes(b"not needed")
    return folder


@pytest.fixture
def hub(model) -> Iterator[HubServer]:
    with running_hub() as server:
        server.repositories["me/model"] = repository_of(model)
        yield server


def repository_of(folder: Path) -> Repository:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    return Repository(files=files, sha="1" * 40)


def run(
    hub: HubServer, home: Path, arguments: list[str], **variables: str
) -> subprocess.CompletedProcess:
    """Run Python in a process of its own, because the client reads its environment when it is
    imported."""
    environment = {**os.environ, **ENVIRONMENT, "HF_ENDPOINT": hub.url, "HF_HOME": str(home)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command,
        env={**environment, **variables},
        input=LINES,
        capture_output=True,
        text=True,
        timeout=120,
    )


def predict(hub: HubServer, home: Path, name: str, **variables: str) -> subprocess.CompletedProcess:
    return run(hub, home, ["-m", "roformer_lite.cli", "predict", name], **variables)


def test_a_model_from_the_hub_predicts_as_its_directory(hub, model, tmp_path):
    expected = predict(hub, tmp_path, str(model))
    assert expected.returncode == 0, expected.stderr
    assert not hub.requests
    for variables in ({}, {"HF_HUB_OFFLINE": "1"}):
        found = predict(hub, tmp_path, "me/model", **variables)
        assert found.returncode == 0, found.stderr
        assert found.stdout == expected.stdout
    downloads = [path for method, path in hub.requests if method == "GET" and "resolve" in path]
    # Each file is downloaded once, and the second form of the weights is not.
    assert len(set(downloads)) == len(downloads)
    assert not any("pytorch_model" in path for path in downloads)
    shutil.rmtree(tmp_path / "hub")
    absent = predict(hub, tmp_path, "me/model", HF_HUB_OFFLINE="1")
    assert absent.returncode == 2 and "HF_HUB_OFFLINE is set" in absent.stderr


def test_a_tokenizer_is_downloaded_without_the_weights(hub, tmp_path):
    code = "from roformer_lite.saved.saved_model import load_tokenizer; load_tokenizer('me/model')"
    done = run(hub, tmp_path, ["-c", code])
    assert done.returncode == 0, done.stderr
    assert not any("safetensors" in path and "json" not in path for _, path in hub.requests)


def test_a_repository_that_lacks_a_shard(hub, tmp_path):
    files = hub.files("me/model")
    missing = min(name for name in files if name.endswith(".safetensors"))
    del files[missing]
    done = predict(hub, tmp_path, "me/model")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"names {missing}, which does not exist" in done.stderr


def test_a_repository_whose_terms_were_not_accepted(hub, tmp_path):
    hub.repositories["me/model"].gated = True
    done = predict(hub, tmp_path, "me/model")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "me/model" in done.stderr


CONVERT = """
import sys
import torch
from hf_roformer_lite.conversion import ConversionError, ConvertedModel
for name in ("me/absent", "me/gated"):
    try:
        ConvertedModel.from_pretrained(name)
    except ConversionError as error:
        assert str(error).startswith(name), error
    else:
        raise AssertionError(name)
model = ConvertedModel.from_pretrained("me/bert")
torch.save(model.state_dict(), sys.argv[1])
"""


def test_a_checkpoint_from_the_hub_is_converted(hub, tmp_path):
    save_bert(tmp_path / "bert", "ab")
    hub.repositories["me/bert"] = repository_of(tmp_path / "bert")
    hub.repositories["me/gated"] = repository_of(tmp_path / "bert")
    hub.repositories["me/gated"].gated = True
    done = run(hub, tmp_path / "home", ["-c", CONVERT, str(tmp_path / "weights")])
    assert done.returncode == 0, done.stderr
    expected = ConvertedModel.from_pretrained(tmp_path / "bert").state_dict()
    found = torch.load(tmp_path / "weights", weights_only=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
