"""`roformer-lite serve`: serve a causal model with OpenAI's protocol and the server of
transformers."""

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub.constants import HF_HUB_CACHE

from ..answers import device_named
from ..errors import InputError
from ..saved_model import (
    load_complete_model,
    load_config,
    model_class_of,
    require_tokenizer,
)
from .serve_options import ServeArguments

if TYPE_CHECKING:
    from fastapi import Request

CHAT_ROUTES = ("/v1/chat/completions", "/v1/responses", "/v1/systemone")


def main(name: str, options: ServeArguments) -> None:
    """Run `roformer-lite serve MODEL` until the process is stopped.

    Raises:
        InputError: if the model is damaged or of another kind, or if the device or the port cannot
            be used.
    """
    config = load_config(name)
    tokenizer = require_tokenizer(name, config)
    model_class = model_class_of(config, name)
    if not model_class.__name__.endswith("ForCausalLM"):
        raise InputError(
            f"{name}: {model_class.__name__} is not a causal model; vLLM serves encoders and "
            "classifiers (see docs/exporting.md)"
        )
    try:
        socket.create_server((options.host, options.port)).close()
    except OSError as error:
        raise InputError(
            f"--host {options.host} --port {options.port} can't be used: {error.strerror}"
        ) from error
    if options.device != "auto":
        device_named(options.device)
    # The server would only warn if weights are missing.
    load_complete_model(name, config, model_class)
    with suppress(OSError):
        # Some versions of the server list the models in the cache, which may not exist yet.
        Path(HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)
    # Importing our classes replaces the module `transformers`, so this import comes after them.
    from transformers.cli.serve import Serve

    class Server(Serve):
        """The server of transformers, which refuses chats if the model has no chat template."""

        def start_server(self) -> None:
            if tokenizer.chat_template is None:
                self.server.config.app.middleware("http")(refuse_chats)
            self.server.run()

    print(f"{name}: http://{options.host}:{options.port}/v1", flush=True)
    # The argument `non_blocking` makes the server call our `start_server`, which runs it in the
    # foreground.
    Server(name, non_blocking=True, **vars(options))


async def refuse_chats(request: "Request", call_next: Any) -> Any:
    """Answer requests that need a chat template with an error, and pass on all others."""
    from fastapi.responses import JSONResponse

    if request.url.path not in CHAT_ROUTES:
        return await call_next(request)
    message = (
        f"{request.url.path} needs a chat template, which the tokenizer of this model does not "
        "have; send the text as the prompt of /v1/completions"
    )
    error = {"message": message, "type": "invalid_request_error"}
    return JSONResponse({"error": error}, status_code=400)
