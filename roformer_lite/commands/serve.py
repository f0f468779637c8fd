"""`roformer-lite serve`: transformers' own OpenAI-compatible server, with the models of this package in it.

`transformers serve` looks for a model's class in transformers' own namespace, even for remote code, and imports no
plugin, so it does not find the classes of this package. This command puts the class there, checks the model, and
starts the server behind a guard that refuses requests which would stop it. An encoder, for which transformers has no
server, gets one that answers `/v1/embeddings`.
"""

import os
import sys
from importlib import import_module
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.model.configuration_roformer_lite import AUTO_CLASSES
from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel

from ..errors import InputError
from ..saved_files import find_file, read_object
from ..saved_model import load_complete_model, load_config, load_tokenizer, model_class_of, try_tokenizer
from ..sentence_encoder import check_sentence_modules
from .command_parser import CommandParser
from .embedding_server import EmbeddingServerArguments, serve_embeddings
from .request_checks import RequestLimits

_ENCODERS = (RoFormerLiteModel, RoFormerLiteForMaskedLM)


def main(argv: list[str]) -> None:
    """Run `roformer-lite serve MODEL`, with every option of `transformers serve`.

    Raises:
        InputError: when what the server needs is not installed, or the model is damaged.
    """
    try:
        from transformers.cli.transformers import app
        from transformers.utils.import_utils import is_serve_available
    except ImportError as error:
        raise InputError(f"serving needs a transformers with `transformers serve`, such as 5.23: {error}") from error
    if not is_serve_available():
        raise InputError("serving needs its libraries: pip install 'hf_roformer_lite[serve]'")
    # In `sys.modules`, where the server looks too: transformers replaces its own module there while it loads.
    setattr(sys.modules["transformers"], RoFormerLiteForCausalLM.__name__, RoFormerLiteForCausalLM)
    name = _model_argument(app, argv)
    loaded = _load(name)
    if loaded is not None and isinstance(loaded[0], _ENCODERS) and not loaded[0].config.is_decoder:
        parser = CommandParser(
            "serve",
            "Answer /v1/embeddings with an encoder.",
            [EmbeddingServerArguments],
            MODEL="the model's directory",
        )
        check_sentence_modules(name)
        serve_embeddings(*loaded, name, parser.parse(argv)[0])
        return
    _guard_requests(_limits_of(loaded, name))
    app(["serve", *argv], prog_name="roformer-lite")


def _model_argument(app: Any, argv: list[str]) -> str | None:
    """MODEL as transformers' own parser finds it; None without one. A mistake is left to that parser to tell."""
    if not hasattr(app, "commands"):  # an application of typer, which older versions have; newer ones have click's
        from typer.main import get_command

        app = get_command(app)
    context = app.commands["serve"].make_context("serve", list(argv), resilient_parsing=True)
    return context.params.get("force_model")


def _load(name: str | None) -> tuple[PreTrainedModel, PreTrainedTokenizerBase] | None:
    """A model of this package with its tokenizer, both undamaged; None where transformers alone knows the model."""
    config_file = None if name is None or "@" in name or ".gguf" in name else find_file(name, "config.json")
    if name is not None and config_file is None and os.path.isdir(name):
        raise InputError(f"no model can be loaded from {name}: it has no config.json")
    if name is None or config_file is None or read_object(config_file).get("model_type") not in AUTO_CLASSES:
        return None
    config, tokenizer = load_config(name), load_tokenizer(name)
    if tokenizer is None:
        raise InputError(f"no model can be loaded from {name}: it has no tokenizer")
    try_tokenizer(tokenizer, name)
    return load_complete_model(name, config, model_class_of(config, name)), tokenizer


def _limits_of(loaded: tuple[PreTrainedModel, PreTrainedTokenizerBase] | None, name: str | None) -> RequestLimits:
    if loaded is None:
        return RequestLimits()
    model, tokenizer = loaded
    if not isinstance(model, RoFormerLiteForCausalLM):
        raise InputError(f"{name}: {type(model).__name__} has no server; `serve` needs a causal model or an encoder")
    return RequestLimits.of(model, tokenizer)


def _guard_requests(limits: RequestLimits) -> None:
    """Put the guard around the application that transformers builds.

    Raises:
        InputError: when this version of transformers builds it in another way.
    """
    from .request_guard import RequestGuard

    server = import_module("transformers.cli.serving.server")
    build = getattr(server, "build_server", None)
    if build is None:
        raise InputError("this version of transformers serves in another way; use 5.23")

    def guarded(*args: Any, **kwargs: Any) -> Any:
        application = build(*args, **kwargs)
        application.add_middleware(RequestGuard, limits=limits)
        return application

    server.build_server = guarded
