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
        default=None,
        metadata={
            "help": "Where to listen. Default: 127.0.0.1, which this machine alone can reach."
        },
    )
    port: int | None = field(
        default=None,
        metadata={"help": "Port to listen at. Default: the first free one from 7860."},
    )
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, cuda:1 … Default: cuda if there is one."}
    )
    engine: Literal["torch", "onnx", "openvino", "ctranslate2"] = field(
        default="torch",
        metadata={"help": "What computes. All but torch read what `roformer-lite export` wrote."},
    )
    texts: str | None = field(
        default=None,
        metadata={
            "help": (
                "UTF-8 file of examples, one a line; for models that compare texts, a query and "
                "what to compare it with."
            )
        },
    )
    space: str | None = field(
        default=None,
        metadata={"help": "Write a new folder for the Hub's Spaces there, and open no page."},
    )

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)
        if self.engine != "torch" and self.space is not None:
            raise InputError(
                f"--engine {self.engine} can't be combined with --space, where torch computes"
            )


def main(argv: list[str]) -> None:
    """Run `roformer-lite app DIR`."""
    description = (
        "Open a page in the browser on which a model is tried: answers, their scores and reasons."
    )
    parser = CommandParser(
        "app", description, [AppArguments], DIR="the model's directory, or its name on the Hub"
    )
    options, paths = parser.parse(argv)
    require_packages("a page", {"gradio": "app"})
    try:
        lines = (
            Path(options.texts).read_text("utf-8").splitlines() if options.texts is not None else []
        )
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--texts {options.texts}: cannot be read: {error}") from error
    texts = [line for line in lines if line.strip()]
    from ..predict.engines import check_engine

    check_engine(options.engine, paths.dir, options.device)
    if options.space is None:
        from ..app.page import open_page

        address = {"server_name": options.host, "server_port": options.port}
        open_page(
            paths.dir, texts, engine=options.engine, device=options.device, **address
        ).block_thread()
    else:
        from ..app.space import write_space

        out = write_space(paths.dir, options.space, texts)
        print(
            f"{out}: try it with `python {out}/app.py`, publish it with `hf upload NAME {out} --repo-type space`"
        )
