"""`roformer-lite app`: a page in the browser on which a model is tried."""

from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..command_parser import CommandParser
from ..errors import InputError, check_number, require_packages
from ..export.formats import Engine, check_engine


@dataclass
class AppArguments:
    """Options of `roformer-lite app`."""

    host: str | None = HfArg(
        default=None,
        help="Where to listen. Default: 127.0.0.1, which this machine alone can reach.",
    )
    port: int | None = HfArg(
        default=None, help="Port to listen at. Default: the first free one from 7860."
    )
    device: str | None = HfArg(
        default=None, help="cpu, cuda, cuda:1 … Default: cuda if there is one."
    )
    engine: Engine = HfArg(
        default="torch",
        help="The library that computes. onnx reads what `roformer-lite export` wrote.",
    )
    device: str | None = HfArg(
        default=None, help="cpu, cuda, cuda:1 … Default: cuda if there is one."
    )

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)


def main(argv: list[str]) -> None:
    """Run `roformer-lite app DIR`."""
    parser = CommandParser(
        "app",
        "Open a page in the browser on which a model is tried.",
        [AppArguments],
        DIR="the model's directory, or its name on the Hub",
    )
    options, paths = parser.parse(argv)
    require_packages("a page", {"gradio": "app"})
    texts = [] if options.texts is None else _read_examples(options.texts)
    check_engine(options.engine, paths.dir, options.device)

    from ..app.page import open_page

    page = open_page(
        paths.dir,
        texts,
        engine=options.engine,
        device=options.device,
        server_name=options.host,
        server_port=options.port,
    )
    page.block_thread()


def _read_examples(path: str) -> list[str]:
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--texts {path}: cannot be read: {error}") from error
    return [line for line in lines if line.strip()]
