"""The options of `roformer-lite serve`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import InputError, check_number, require_packages
from ..options.models import MODEL_HELP
from ..options.parser import CommandParser


@dataclass
class ServeArguments:
    """Options of `roformer-lite serve`, with the same names as in `transformers serve`.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        device: cpu, cuda, cuda:1 …; auto is cuda if there is one.
        dtype: Data type of the weights; auto: as saved.
        log_level: Lowest level of messages to log.
        continuous_batching: Causal models: compute requests together, with a paged cache.
        cb_block_size: Tokens in a block of that cache.
        cb_num_blocks: Blocks of that cache.
        cb_max_batch_tokens: Maximum number of tokens in a step.
        cb_max_memory_percent: Maximum fraction of a GPU's memory for that cache.
    """

    host: str = "localhost"
    port: int = 8000
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "warning"
    continuous_batching: bool = False
    cb_block_size: int | None = None
    cb_num_blocks: int | None = None
    cb_max_batch_tokens: int | None = None
    cb_max_memory_percent: float | None = None

    def __post_init__(self):
        check_number("port", self.port, minimum=1, maximum=65535)
        for name, value in vars(self).items():
            if name.startswith("cb_") and value is not None:
                check_number(name, value, above=0)
                if not self.continuous_batching:
                    raise InputError(
                        f"--{name} {value} has no effect without --continuous_batching"
                    )


def parse(argv: Sequence[str]) -> tuple[str, ServeArguments]:
    """The model of `roformer-lite serve`, and the options."""
    parser = CommandParser(
        "serve",
        "Serve a causal model over HTTP with OpenAI's API (/v1/completions and, if the tokenizer "
        "has a chat template, /v1/chat/completions), with the server of transformers. vLLM also "
        "serves encoders and classifiers: see docs/exporting.md.",
        [ServeArguments],
        MODEL=MODEL_HELP,
    )
    options, model = parser.parse(argv)
    require_packages("serving", dict.fromkeys(("fastapi", "openai", "uvicorn"), "serve"))
    return model, options
