"""`roformer-lite serve`: OpenAI's requests over HTTP, by a causal model and the server of
transformers."""

import socket

from ..command_options import ServeArguments
from ..errors import InputError
from ..saved_model import (
    load_complete_model,
    load_config,
    load_tokenizer,
    model_class_of,
    reason,
)


def main(name: str, options: ServeArguments) -> None:
    """Run `roformer-lite serve MODEL`, until the process is ended.

    Raises:
        InputError: when the model is damaged or of another kind, and when device or port can't be
            used.
    """
    config = load_config(name)
    if load_tokenizer(name, config) is None:
        raise InputError(f"no model can be loaded from {name}: it has no tokenizer")
    model_class = model_class_of(config, name)
    if not model_class.__name__.endswith("ForCausalLM"):
        raise InputError(
            f"{name}: {model_class.__name__} is not a causal model; vLLM serves encoders and classifiers, see "
            "docs/exporting.md"
        )
    try:
        socket.create_server((options.host, options.port)).close()
    except OSError as error:
        raise InputError(
            f"--host {options.host} --port {options.port} can't be used: {error.strerror}"
        ) from error
    # transformers only warns of missing weights
    model = load_complete_model(name, config, model_class)
    try:
        model.to(None if options.device == "auto" else options.device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise InputError(
            f"--device {options.device} can't be used here: {reason(error)}"
        ) from error
    del model
    # after our classes: transformers is imported anew along with them
    from transformers.cli.serve import Serve

    print(f"{name}: http://{options.host}:{options.port}/v1", flush=True)
    Serve(name, **vars(options))
