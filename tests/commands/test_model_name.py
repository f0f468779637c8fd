"""A mistyped model is refused with one sentence: at once if it can only be a path, and after a
question to the Hub otherwise."""

import os
import socket
import subprocess
import sys
from unittest.mock import Mock

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import RepositoryNotFoundError

from roformer_lite.errors import InputError, check_model_name


def test_paths_never_go_to_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = Mock()
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", asked)
    (tmp_path / "models" / "reviews").mkdir(parents=True)
    check_model_name("models/reviews")
    for name in ("models/reveiws", "./models/reveiws/", str(tmp_path / "models" / "reveiws")):
        message = r"reveiws/?: there is no such directory$"
        with pytest.raises(InputError, match=message):
            check_model_name(name)
    (tmp_path / "model.bin").touch()
    with pytest.raises(InputError, match="^--tokenizer model.bin: there is no such directory"):
        check_model_name("model.bin", "--tokenizer model.bin")
    asked.assert_not_called()


def test_a_hub_that_cannot_be_reached(tmp_path):
    """It says nothing about a name, so the message doesn't either. The program runs in a process of
    its own, because the client of the Hub reads its environment when it is imported."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        online = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "roformer_lite.cli", "predict", "modle"],
            env={**os.environ, **online},
            input="",
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2 and "Retrying" not in done.stderr and "Traceback" not in done.stderr
    assert "modle: there is no such directory here, and the Hub cannot be reached" in done.stderr


def test_a_name_that_the_hub_does_not_know(monkeypatch):
    response = httpx.Response(404, request=httpx.Request("HEAD", "https://huggingface.co"))
    unknown = RepositoryNotFoundError("unknown", response=response)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", Mock(side_effect=unknown))
    with pytest.raises(InputError, match="the Hub .* has no such model: unknown"):
        check_model_name("me/modle")


def test_a_name_that_is_not_in_the_cache():
    """The tests run without the Hub. A cached model is trained in test_model_card.py."""
    with pytest.raises(InputError, match="absent: "):
        check_model_name("absent")
