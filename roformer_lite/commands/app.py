"""`roformer-lite app`: a page in the browser on which a model is tried."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import InputError, check_number, require_packages
from .command_parser import CommandParser


@dataclass
class AppArguments:
    """Options of `roformer-lite app`."""

    host: str | None = field(
        default=None, metadata={"help": "Where to listen. Default: 127.0.0.1, which this machine alone can reach."}
    )
    port: int | None = field(
        default=None, metadata={"help": "Port to listen at. Default: the first free one from 7860."}
    )
    device: str | None = field(default=None, metadata={"help": "cpu, cuda, cuda:1 … Default: cuda if there is one."})
    dtype: Literal["float32", "bfloat16", "float16"] | None = field(
        default=None, metadata={"help": "Type of the weights. Default: as saved."}
    )
    engine: Literal["torch", "onnx", "openvino", "ctranslate2"] = field(
        default="torch", metadata={"help": "What computes. All but torch read what `roformer-lite export` wrote."}
    )
    texts: str | None = field(
        default=None,
        metadata={
            "help": "UTF-8 file of examples, one a line; for models that compare texts, a query and what it is "
            "compared with."
        },
    )
    space: str | None = field(
        default=None,
        metadata={"help": "Write a folder for the Hub's Spaces there, and open no page. It must not exist yet."},
    )

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)
        if self.engine != "torch" and (self.dtype is not None or self.space is not None):
            raise InputError(f"--engine {self.engine} can't be combined with --dtype or --space, which are for torch")


def main(argv: list[str]) -> None:
    """Run `roformer-lite app DIR`."""
    parser = CommandParser(
        "app",
        "Open a page in the browser on which a model is tried: answers with their scores and reasons, and several "
        "texts at once.",
        [AppArguments],
        DIR="the model's directory, or its name on the Hub",
    )
    options, paths = parser.parse(argv)
    require_packages("a page", {"gradio": "app"})
    texts = []
    if options.texts is not None:
        try:
            texts = [line for line in Path(options.texts).read_text("utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--texts {options.texts}: cannot be read: {error}") from error

    from ..predict.engines import check_engine  # it imports torch

    check_engine(options.engine, paths.dir, options.device)
    if options.space is not None:
        from ..app.space import write_space

        try:
            out = write_space(paths.dir, options.space, texts)
        except OSError as error:
            raise InputError(f"--space {options.space}: cannot be written: {error}") from error
        print(f"{out}: try it with `python {out}/app.py`, publish it with `hf upload NAME {out} --repo-type space`")
        return
    from ..app.page import open_page

    open_page(paths.dir, texts, options.host, options.port, options.device, options.dtype, options.engine)
