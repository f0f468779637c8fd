"""A mistyped model is refused with one sentence: at once if it can only be a path, and after a
question to the Hub otherwise."""

import os
import socket
from unittest.mock import Mock

import httpx
import pytest
from huggingface_hub.errors import RepositoryNotFoundError
from program import in_new_process

import roformer_lite
from hf_roformer_lite.conversion import checkpoint_files
from roformer_lite.errors import InputError


def test_paths_never_go_to_the_hub(current_folder, monkeypatch):
    asked = Mock()
    monkeypatch.setattr(checkpoint_files, "snapshot_download", asked)
    (current_folder / "models").mkdir()
    (current_folder / "model.bin").touch()
    absolute = str(current_folder / "models" / "reveiws")
    for name in ("models/reveiws", "./models/reveiws/", absolute, "model.bin"):
        with pytest.raises(InputError, match=f"^{name}: there is no such directory$"):
            roformer_lite.predict(name, ["a text"])
    asked.assert_not_called()


def test_a_hub_that_cannot_be_reached(tmp_path):
    """It says nothing about a name, so the message doesn't either. The program runs in a process of
    its own, because the client of the Hub reads its environment when it is imported."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        online = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        command = ["-m", "roformer_lite.cli", "predict", "modle"]
        environment = {**os.environ, **online}
        done = in_new_process(*command, status=2, timeout=120, env=environment, input="")
    assert "Retrying" not in done.stderr and "Traceback" not in done.stderr
    assert "modle: there is no such directory here, and the Hub cannot be reached" in done.stderr


@pytest.mark.parametrize("option", ["model_name_or_path", "tokenizer"])
def test_a_name_that_the_hub_does_not_know(option, tmp_path, monkeypatch):
    response = httpx.Response(404, request=httpx.Request("GET", "https://huggingface.co"))
    unknown = RepositoryNotFoundError("unknown", response=response)
    monkeypatch.setattr(checkpoint_files, "snapshot_download", Mock(side_effect=unknown))
    (tmp_path / "rows.csv").write_text("text,label\na,x\nb,y\n", "utf-8")
    options = {"train_file": str(tmp_path / "rows.csv"), "output_dir": str(tmp_path / "out")}
    with pytest.raises(InputError, match="me/modle: .* has no such model: .*unknown"):
        roformer_lite.train("classify", **options, **{option: "me/modle"})
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.training").exists()


def test_a_name_that_is_not_in_the_cache():
    """The tests run without the Hub. A cached model is trained in test_model_card.py."""
    with pytest.raises(InputError, match="absent: "):
        roformer_lite.predict("absent", ["a text"])


def test_an_adapter_is_not_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="merge it into its base model"):
        roformer_lite.predict(tmp_path, ["a text"])
