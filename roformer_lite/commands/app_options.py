"""The options of `roformer-lite app`."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import check_model_name, check_number, require_packages
from ..options.models import MODEL_HELP, DeviceArguments
from ..options.parser import CommandParser


@dataclass
class AppArguments(DeviceArguments):
    """Options of `roformer-lite app`.

    Args:
        host: Address to listen on. Default: 127.0.0.1, which only this machine can reach.
        port: Port to listen on. Default: the first free one from 7860.
    """

    host: str | None = None
    port: int | None = None

    def __post_init__(self):
        check_number("port", self.port, minimum=1, maximum=65535)


def parse(argv: Sequence[str]) -> tuple[AppArguments, str]:
    """The options of `roformer-lite app`, and the model's directory."""
    parser = CommandParser(
        "app",
        "Open a page in the browser to try a model.",
        [AppArguments],
        DIR=MODEL_HELP,
    )
    options, directory = parser.parse(argv)
    require_packages("a page", ["gradio"])
    check_model_name(directory)
    return options, directory
