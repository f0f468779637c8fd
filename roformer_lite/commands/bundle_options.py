"""The options of `roformer-lite bundle`."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import check_directory
from ..options.parser import CommandParser
from ..output import new_directory


def parse(argv: Sequence[str]) -> tuple[Path, Path]:
    """The directory of the model and the new directory of `roformer-lite bundle`."""
    parser = CommandParser(
        "bundle",
        "Copy a saved model to OUT, together with the code of the package. OUT can be loaded "
        "without installing the package: AutoModel.from_pretrained(OUT, trust_remote_code=True).",
        DIR="a directory with a saved model, tokenizer, or both; it is not changed",
        OUT="the directory to write, which must be new or empty",
    )
    directory, out = parser.parse(argv)
    check_directory(directory)
    return Path(directory), new_directory(out)
