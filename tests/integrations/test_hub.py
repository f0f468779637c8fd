"""Models are pushed to the Hub and read from it, for which its cache and its client stand in."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import LIBRARIES, assert_equal
from huggingface_hub import HfApi
from huggingface_hub.utils import filter_repo_objects
from program import in_new_process, run
from saved_models import save_bert, save_model

from hf_roformer_lite.conversion import ConversionError, checkpoint_files
from hf_roformer_lite.conversion.checkpoints import load_model
from roformer_lite.saved.saved_model import require_tokenizer

WITHOUT_PACKAGE = """
import sys
sys.modules["hf_roformer_lite"] = None
import torch, transformers
options = {"trust_remote_code": True}
tokenizer = transformers.AutoTokenizer.from_pretrained("me/model", **options)
model = transformers.AutoModelForSequenceClassification.from_pretrained("me/model", **options)
torch.save(model(**tokenizer("fine", return_tensors="pt")).logits, "logits")
model.save_pretrained("again")
tokenizer.save_pretrained("again")
"""


def cached(home: Path) -> Path:
    """The folder of the repository me/model in the cache of the Hub."""
    repository = home / "hub" / "models--me--model"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text("1" * 40)
    return repository / "snapshots" / ("1" * 40)


@pytest.mark.slow
def test_a_pushed_model_opens_without_the_package(tmp_path, monkeypatch):
    """Model and tokenizer are pushed one after the other, and are still complete when they were
    opened from the Hub and saved."""
    folder = cached(tmp_path)

    def commit(self, repo_id, operations, **options):
        assert repo_id == "me/model"
        for operation in operations:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(operation.path_or_fileobj, folder / operation.path_in_repo)

    repository = SimpleNamespace(repo_id="me/model")
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: repository)
    monkeypatch.setattr(HfApi, "create_commit", commit)
    save_model("classify", tmp_path / "model")
    model = load_model(tmp_path / "model")
    tokenizer = require_tokenizer(tmp_path / "model")
    for part in (model, tokenizer):
        part.remote_code = True
        part.push_to_hub("me/model")
    code = f"import sys; sys.path += {LIBRARIES}\n{WITHOUT_PACKAGE}"
    environment = {**os.environ, "HF_HOME": str(tmp_path)}
    in_new_process("-I", "-S", "-c", code, cwd=tmp_path, env=environment)
    expected = model(**tokenizer("fine", return_tensors="pt")).logits
    assert torch.equal(torch.load(tmp_path / "logits"), expected)
    names = set(os.listdir(folder)) - {"README.md"}
    assert "heads_roformer_lite.py" in names
    assert set(os.listdir(tmp_path / "again")) == names


def test_a_model_on_the_hub_is_converted(tmp_path, monkeypatch):
    bert = save_bert(tmp_path / "bert", words=["a", "b"])
    monkeypatch.setattr(checkpoint_files, "snapshot_download", lambda *_, **__: bert)
    run("convert me/bert", tmp_path / "converted")
    assert (tmp_path / "converted" / "model.safetensors").is_file()


def test_only_needed_files_are_downloaded(tmp_path, monkeypatch):
    """A classifier in several shards lies beside weights in another form."""
    there = tmp_path / "there"
    here = tmp_path / "here"
    model = load_model(save_model("classify", tmp_path / "model"))
    model.save_pretrained(there, max_shard_size="12KB")
    require_tokenizer(tmp_path / "model").save_pretrained(there)
    (there / "pytorch_model.bin").write_bytes(b"not needed")

    def download(repository: str, allow_patterns: list[str]) -> str:
        here.mkdir(exist_ok=True)
        for name in filter_repo_objects(os.listdir(there), allow_patterns=allow_patterns):
            shutil.copy(there / name, here)
        return str(here)

    monkeypatch.setattr(checkpoint_files, "snapshot_download", download)
    assert require_tokenizer("me/model") is not None
    assert not list(here.glob("*.safetensors"))
    assert_equal(load_model("me/model").state_dict(), model.state_dict())
    shards = list(there.glob("*.safetensors"))
    assert len(shards) == len(list(here.glob("*.safetensors"))) > 1
    assert not list(here.glob("*.bin"))
    for folder in (there, here):
        (folder / shards[0].name).unlink()
    with pytest.raises(ConversionError, match=f"names {shards[0].name}, which does not exist"):
        checkpoint_files.weight_files("me/incomplete")
