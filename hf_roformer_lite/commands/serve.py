"""`roformer-lite serve`: transformers' own OpenAI-compatible server, with the models of this package in it.

`transformers serve` looks for a model's class in transformers' own namespace, even for remote code, and imports no
plugin, so it does not find the classes of this package. This command puts the class there, checks the model, and
starts the server behind a guard that refuses requests which would stop it.
"""

import sys
from importlib import import_module
from typing import Any

from ..errors import InputError
from ..model.lm_heads import RoFormerLiteForCausalLM
from ..registration import MODEL_TYPES
from ..saved_files import find_file, read_object
from ..saved_model import load_complete_model, load_config, load_tokenizer, model_class_of, try_tokenizer
from .request_checks import RequestLimits


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
    model = _model_argument(app, argv)
    _guard_requests(_check_model(model))
    app(["serve", *argv], prog_name="roformer-lite")


def _model_argument(app: Any, argv: list[str]) -> str | None:
    """MODEL as transformers' own parser finds it; None without one. A mistake is left to that parser to tell."""
    if not hasattr(app, "commands"):  # an application of typer, which older versions have; newer ones have click's
        from typer.main import get_command

        app = get_command(app)
    context = app.commands["serve"].make_context("serve", list(argv), resilient_parsing=True)
    return context.params.get("force_model")


def _check_model(name: str | None) -> RequestLimits:
    """Refuse a damaged model of this package before the server loads it; returns the limits of requests to it."""
    config_file = None if name is None or "@" in name or ".gguf" in name else find_file(name, "config.json")
    if name is None or config_file is None or read_object(config_file).get("model_type") not in MODEL_TYPES.values():
        return RequestLimits()  # transformers alone knows the model
    config, tokenizer = load_config(name), load_tokenizer(name)
    if tokenizer is None:
        raise InputError(f"no model can be loaded from {name}: it has no tokenizer")
    try_tokenizer(tokenizer, name)
    model = load_complete_model(name, config, model_class_of(config, name))
    if not isinstance(model, RoFormerLiteForCausalLM):
        raise InputError(f"{name}: {type(model).__name__} does not continue text; `serve` needs a causal model")
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
