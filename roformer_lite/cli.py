"""`roformer-lite`: the command line.

Each command has two modules in `commands/`: one parses its options, and the other one runs it. Both
are imported only when the command is given. The second imports torch, and is imported only if the
options are valid.
"""

import argparse
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from .errors import InputError
from .output import is_disk_full

# The command `export`, for example, has a function `parse` in `commands/export_options.py`, whose
# results are passed to the function `main` in `commands/export.py`.
COMMANDS = {
    "train": "train a model on your own text: labels, tags, pairs, language models or embeddings",
    "evaluate": "evaluate a trained model on labelled data, and show its worst predictions",
    "predict": "run a trained model on the lines of a text or on a column of a table",
    "app": "serve a web page for trying a model",
    "convert": "convert a checkpoint of another system into a RoFormerLite model, or back",
    "export": "write a trained model for other runtimes: ONNX, CTranslate2, llama.cpp",
}
# oneDNN makes a kernel for each shape of bfloat16 matrices. Batches without padding keep bringing
# new shapes, and by default torch would keep 1,024 kernels, which take gigabytes. The limits are
# read before the first matrix product.
_KERNELS_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `roformer-lite` and return the exit status. Invalid input leads to a message without a
    traceback, and to status 2."""
    parser = argparse.ArgumentParser(
        prog="roformer-lite",
        description="Train, evaluate, use and export text models.",
        epilog="`roformer-lite COMMAND --help` lists the options of a command.",
    )
    parser.add_argument(
        "--version", action="version", version=f"roformer-lite {version('hf_roformer_lite')}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, add_help=False)
    arguments, words = parser.parse_known_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    for name, kept in _KERNELS_KEPT.items():
        os.environ.setdefault(name, kept)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Characters that the terminal cannot show are printed as escape sequences.
        sys.stdout.reconfigure(errors="backslashreplace")
    _set_up_logging()
    try:
        options = import_module(f".commands.{arguments.command}_options", __package__)
        given = options.parse(words)
        # The progress bars for loading and saving weights are not informative.
        import_module("transformers").logging.disable_progress_bar()
        command = import_module(f".commands.{arguments.command}", __package__)
        command.main(*given)
    except KeyboardInterrupt:
        message = f"\nroformer-lite {arguments.command}: interrupted"
        if arguments.command == "train":
            message += "; the same command continues from the last checkpoint, if there is one"
        print(message, file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The program that reads the output, for example `head`, has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    # Errors of the machine have many types. An error without a message of ours keeps its traceback.
    except Exception as error:
        message = _message_about(error)
        if not message:
            raise
        print(f"roformer-lite {arguments.command}: error: {message}", file=sys.stderr)
        return 2
    return 0


def _message_about(error: BaseException) -> str:
    """A message about invalid input, or about the machine, such as a lack of memory; empty for all
    other errors."""
    if isinstance(error, InputError):
        return str(error)
    # torch has an `OutOfMemoryError` of its own.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return (
            f"there is not enough memory: {error}; use smaller batches, shorter texts or a smaller "
            "model"
        )
    if is_disk_full(error):
        return (
            "no space left on the disk, or a file larger than `ulimit -f` allows: "
            f"{error.__cause__ or error}; free some space and run the same command again"
        )
    return ""


def _set_up_logging() -> None:
    """Show the messages of this program, but only the errors of libraries. The warnings of
    libraries are about their own code and would precede every result. Their environment variables
    and Python's option -W enable them again."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    for package in ("roformer_lite", "hf_roformer_lite"):
        logging.getLogger(package).setLevel(logging.INFO)
    os.environ.setdefault("TORCH_LOGS", "-all")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main())
