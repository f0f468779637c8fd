"""The options of `roformer-lite app`."""

from collections.abc import Sequence

from ..errors import require_packages
from ..options.models import MODEL_HELP, DeviceArguments
from ..options.parser import CommandParser


def parse(argv: Sequence[str]) -> tuple[DeviceArguments, str]:
    """The options of `roformer-lite app`, and the model's directory."""
    parser = CommandParser(
        "app",
        "Open a page in the browser to try a model. The environment variables GRADIO_SERVER_NAME "
        "and GRADIO_SERVER_PORT change its address, 127.0.0.1:7860.",
        [DeviceArguments],
        DIR=MODEL_HELP,
    )
    options, directory = parser.parse(argv)
    require_packages("a page", ["gradio"])
    return options, directory
