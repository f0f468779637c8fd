"""A mistyped model is refused with one sentence: at once if it can only be a path, and after a
question to the Hub otherwise."""

import os
import socket
import subprocess
import sys

import huggingface_hub
import pytest
from hub_server import ENVIRONMENT, running_hub
from huggingface_hub.errors import OfflineModeIsEnabled

from roformer_lite.errors import InputError, check_model_name


def test_paths_never_go_to_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def asked(*_, **__):
        pytest.fail("the Hub was asked")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", asked)
    (tmp_path / "models" / "reviews").mkdir(parents=True)
    check_model_name("models/reviews")
    for name in ("models/reveiws", "./models/reveiws/", str(tmp_path / "models" / "reveiws")):
        message = r"reveiws/?: there is no such directory$"
        with pytest.raises(InputError, match=message):
            check_model_name(name)
    (tmp_path / "model.bin").touch()
    with pytest.raises(InputError, match="^--tokenizer model.bin: is a file"):
        check_model_name("model.bin", "--tokenizer model.bin")


def predict(name: str, endpoint: str, home: str) -> str:
    """Return the message with which `predict` ends. It runs in a process of its own, because the
    client of the Hub reads its environment when it is imported."""
    environment = {**os.environ, **ENVIRONMENT, "HF_ENDPOINT": endpoint, "HF_HOME": home}
    command = [sys.executable, "-m", "roformer_lite.cli", "predict", name]
    done = subprocess.run(
        command, env=environment, input="", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and "Retrying" not in done.stderr and "Traceback" not in done.stderr
    return done.stderr


def test_what_the_hub_says(tmp_path):
    """A Hub that can't be reached says nothing about a name, so the message doesn't either."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        message = predict("modle", f"http://127.0.0.1:{closed.getsockname()[1]}", str(tmp_path))
    assert "modle: there is no such directory here, and the Hub cannot be reached" in message
    with running_hub() as hub:
        message = predict("me/modle", hub.url, str(tmp_path))
    assert "the Hub has no repository of this name" in message


def test_the_cache_stands_in_for_a_hub_that_is_away(monkeypatch):
    def away(url, timeout):
        raise OfflineModeIsEnabled("away")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", away)
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda name, file: name == "cached" and file
    )
    check_model_name("cached")
    with pytest.raises(InputError, match="absent: .* was not asked because HF_HUB_OFFLINE is set"):
        check_model_name("absent")
