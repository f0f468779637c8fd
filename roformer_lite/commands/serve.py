"""`roformer-lite serve`: OpenAI's requests over HTTP, text by a causal model, or vectors by an encoder."""

from dataclasses import dataclass
from typing import Literal

from ..errors import InputError, check_number, require_packages
from .command_parser import CommandParser, option


@dataclass
class ServeArguments:
    """Options of `roformer-lite serve`, named as those of `transformers serve`."""

    host: str = option("localhost", "Where to listen.")
    port: int = option(8000, "Port to listen at.")
    device: str = option("auto", "cpu, cuda, cuda:1 …; auto is cuda if there is one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("auto", "Type of the weights; auto: as saved.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = option("warning", "What is logged.")
    continuous_batching: bool = option(False, "Causal models: compute requests together, with a paged cache.")
    cb_block_size: int | None = option(None, "Tokens in a block of that cache.")
    cb_num_blocks: int | None = option(None, "Blocks of that cache.")
    cb_max_batch_tokens: int | None = option(None, "Most tokens computed at once.")
    cb_max_memory_percent: float | None = option(None, "Largest share of a GPU's memory for that cache, up to 1.")

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)
        for name, value in self.batching.items():
            check_number(f"cb_{name}", value, above=0)
            if not self.continuous_batching:
                raise InputError(f"--cb_{name} {value} has no effect without --continuous_batching")

    @property
    def batching(self) -> dict[str, float]:
        """Fields of transformers' `ContinuousBatchingConfig`."""
        given = {name[3:]: value for name, value in vars(self).items() if name.startswith("cb_")}
        return {name: value for name, value in given.items() if value is not None}


def main(argv: list[str]) -> None:
    """Run `roformer-lite serve MODEL`."""
    parser = CommandParser(
        "serve",
        "Answer OpenAI's requests over HTTP: /v1/completions and /v1/chat/completions by a causal model, with the "
        "server of transformers, and /v1/embeddings by an encoder.",
        [ServeArguments],
        MODEL="the model's directory, or its name on the Hub",
    )
    options, paths = parser.parse(argv)
    require_packages("serving", dict.fromkeys(("fastapi", "openai", "uvicorn"), "serve"))
    serve(paths.model, options)


def serve(name: str, options: ServeArguments) -> None:
    """Answer requests until the process is ended.

    Raises:
        InputError: when the model is damaged or of another kind.
    """
    import torch
    import uvicorn
    from transformers import ContinuousBatchingConfig

    from hf_roformer_lite import RoFormerLiteForMaskedLM, RoFormerLiteModel

    from ..saved_model import load_complete_model, load_config, load_tokenizer, model_class_of, reason
    from ..sentence_encoder import check_sentence_modules
    from .embedding_server import embedding_application
    from .text_server import text_application

    config = load_config(name)
    tokenizer = load_tokenizer(name, config)
    if tokenizer is None:
        raise InputError(f"no model can be loaded from {name}: it has no tokenizer")
    model_class = model_class_of(config, name)
    gives_vectors = issubclass(model_class, (RoFormerLiteModel, RoFormerLiteForMaskedLM)) and not config.is_decoder
    if not gives_vectors and not model_class.__name__.endswith("ForCausalLM"):
        raise InputError(f"{name}: {model_class.__name__} has no server; a causal model or an encoder is needed")
    if gives_vectors and options.continuous_batching:
        raise InputError("--continuous_batching is for causal models, and this is an encoder; leave it out")
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    model = load_complete_model(name, config, model_class).eval()
    try:
        model = model.to(device, None if options.dtype == "auto" else getattr(torch, options.dtype))
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise InputError(f"--device {options.device} can't be used here: {reason(error)}") from error
    if gives_vectors:
        check_sentence_modules(name)
        application = embedding_application(model, tokenizer, name)
    else:
        batching = ContinuousBatchingConfig(**options.batching) if options.continuous_batching else None
        application = text_application(model, tokenizer, name, batching)
    print(f"{name}: http://{options.host}:{options.port}/v1", flush=True)
    uvicorn.run(application, host=options.host, port=options.port, log_level=options.log_level)
