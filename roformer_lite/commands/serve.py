"""`roformer-lite serve`: OpenAI's requests over HTTP, by a causal model and the server of
transformers."""

import socket
from dataclasses import dataclass
from typing import Literal

from transformers.hf_argparser import HfArg

from ..command_parser import CommandParser
from ..errors import InputError, check_number, require_packages


@dataclass
class ServeArguments:
    """Options of `roformer-lite serve`, named as those of `transformers serve`."""

    host: str = HfArg(default="localhost", help="Where to listen.")
    port: int = HfArg(default=8000, help="Port to listen at.")
    device: str = HfArg(default="auto", help="cpu, cuda, cuda:1 …; auto is cuda if there is one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = HfArg(
        default="auto", help="Type of the weights; auto: as saved."
    )
    log_level: Literal["critical", "error", "warning", "info", "debug"] = HfArg(
        default="warning", help="What is logged."
    )
    continuous_batching: bool = HfArg(
        default=False, help="Causal models: compute requests together, with a paged cache."
    )
    cb_block_size: int | None = HfArg(default=None, help="Tokens in a block of that cache.")
    cb_num_blocks: int | None = HfArg(default=None, help="Blocks of that cache.")
    cb_max_batch_tokens: int | None = HfArg(default=None, help="Most tokens computed at once.")
    cb_max_memory_percent: float | None = HfArg(
        default=None, help="Largest share of a GPU's memory for that cache, up to 1."
    )

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)
        for name, value in vars(self).items():
            if name.startswith("cb_") and value is not None:
                check_number(name, value, above=0)
                if not self.continuous_batching:
                    raise InputError(
                        f"--{name} {value} has no effect without --continuous_batching"
                    )


def main(argv: list[str]) -> None:
    """Run `roformer-lite serve MODEL`."""
    parser = CommandParser(
        "serve",
        "Answer OpenAI's requests over HTTP, /v1/completions and /v1/chat/completions, by a causal model, with the "
        "server of transformers. vLLM serves encoders and classifiers too: see docs/exporting.md.",
        [ServeArguments],
        MODEL="the model's directory, or its name on the Hub",
    )
    options, paths = parser.parse(argv)
    require_packages("serving", dict.fromkeys(("fastapi", "openai", "uvicorn"), "serve"))
    serve(paths.model, options)


def serve(name: str, options: ServeArguments) -> None:
    """Answer requests until the process is ended.

    Raises:
        InputError: when the model is damaged or of another kind, and when device or port can't be
            used.
    """
    from ..saved_model import (
        load_complete_model,
        load_config,
        load_tokenizer,
        model_class_of,
        reason,
    )

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
