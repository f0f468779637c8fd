"""`roformer-lite serve`: OpenAI's requests over HTTP, text by a causal model, or vectors by an encoder."""

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

from ..errors import InputError, check_number
from .command_parser import CommandParser


@dataclass
class ServeArguments:
    """Options of `roformer-lite serve`, named as those of `transformers serve`."""

    host: str = field(default="localhost", metadata={"help": "Where to listen."})
    port: int = field(default=8000, metadata={"help": "Port to listen at."})
    device: str = field(default="auto", metadata={"help": "cpu, cuda, cuda:1 …; auto is cuda if there is one."})
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata={"help": "Type of the weights; auto is as saved."}
    )
    log_level: Literal["critical", "error", "warning", "info", "debug"] = field(
        default="warning", metadata={"help": "What is logged."}
    )
    continuous_batching: bool = field(
        default=False, metadata={"help": "Causal models: compute requests together, with a paged cache."}
    )
    cb_block_size: int | None = field(default=None, metadata={"help": "Tokens in a block of that cache."})
    cb_num_blocks: int | None = field(default=None, metadata={"help": "Blocks of that cache."})
    cb_max_batch_tokens: int | None = field(default=None, metadata={"help": "Most tokens computed at once."})
    cb_max_memory_percent: float | None = field(
        default=None, metadata={"help": "Largest share of a GPU's memory for that cache, up to 1."}
    )

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)
        for name in self.batching:
            check_number(f"cb_{name}", self.batching[name], above=0)
            if not self.continuous_batching:
                raise InputError(f"--cb_{name} {self.batching[name]} has no effect without --continuous_batching")

    @property
    def batching(self) -> dict[str, float]:
        """Fields of transformers' `ContinuousBatchingConfig`."""
        names = ("block_size", "num_blocks", "max_batch_tokens", "max_memory_percent")
        found = {name: getattr(self, f"cb_{name}") for name in names}
        return {name: value for name, value in found.items() if value is not None}


def main(argv: list[str]) -> None:
    """Run `roformer-lite serve MODEL`.

    Raises:
        InputError: when what the server needs is not installed, or the model is damaged or of another kind.
    """
    parser = CommandParser(
        "serve",
        "Answer OpenAI's requests over HTTP: /v1/completions and /v1/chat/completions by a causal model, with the "
        "server of transformers, and /v1/embeddings by an encoder.",
        [ServeArguments],
        MODEL="the model's directory, or its name on the Hub",
    )
    options, paths = parser.parse(argv)
    missing = [name for name in ("fastapi", "openai", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(f"serving needs {', '.join(missing)}: pip install 'hf_roformer_lite[serve]'")
    serve(paths.model, options)


def serve(name: str, options: ServeArguments) -> None:
    """Answer requests until the process is ended.

    Raises:
        InputError: as in `main`.
    """
    import torch
    import uvicorn
    from transformers import ContinuousBatchingConfig

    from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteForMaskedLM
    from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel

    from ..saved_model import load_complete_model, load_config, load_tokenizer, model_class_of, try_tokenizer
    from ..sentence_encoder import check_sentence_modules
    from .embedding_server import embedding_application
    from .text_server import text_application

    config, tokenizer = load_config(name), load_tokenizer(name)
    if tokenizer is None:
        raise InputError(f"no model can be loaded from {name}: it has no tokenizer")
    try_tokenizer(tokenizer, name)
    model_class = model_class_of(config, name)
    is_encoder = issubclass(model_class, (RoFormerLiteModel, RoFormerLiteForMaskedLM)) and not config.is_decoder
    if not is_encoder and not model_class.__name__.endswith("ForCausalLM"):
        raise InputError(f"{name}: {model_class.__name__} has no server; a causal model or an encoder is needed")
    if is_encoder and options.continuous_batching:
        raise InputError("--continuous_batching is for causal models, and this is an encoder; leave it out")
    model = load_complete_model(name, config, model_class).eval()
    if options.dtype != "auto":
        model = model.to(getattr(torch, options.dtype))
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model = model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise InputError(f"--device {options.device} can't be used here: {error}") from error
    if is_encoder:
        check_sentence_modules(name)
        application = embedding_application(model, tokenizer, name)
    else:
        batching = ContinuousBatchingConfig(**options.batching) if options.continuous_batching else None
        application = text_application(model, tokenizer, name, batching)
    uvicorn.run(application, host=options.host, port=options.port, log_level=options.log_level)
