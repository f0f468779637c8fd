"""Runs a program in a process in which this package is not imported yet."""

import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path


def printed_by(code: str, argv: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a program prints in a folder. It is given as code, with its arguments."""
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = argv
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code, argv[0], "exec"), {"__name__": "__main__"})
    return printed.getvalue()
