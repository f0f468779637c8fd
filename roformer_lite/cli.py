"""`roformer-lite`: the command line.

A line is parsed by `command_options.py`, and then the command is run by its module in `commands/`.
Both are imported only when a command is given, and the second, which imports torch, only when
nothing is wrong with the line.
"""

import argparse
import gc
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from types import ModuleType

from .errors import InputError
from .output import is_disk_full

# Each command has a parser in `command_options.py` and a module in `commands/`, whose function `main`
# takes the results of the parser.
COMMANDS = {
    "demo": "train, evaluate and save a small model on generated data, without any download",
    "train": "train a model on your own text: labels, tags, pairs, language models or embeddings",
    "evaluate": "measure a trained model on labelled data, and show what it gets wrong",
    "predict": "read lines or a column of a table, write the answers of a trained model",
    "app": "open a page in the browser on which a model is tried",
    "bundle": "add the package's code to a saved model, for use without installing the package",
    "convert": "convert a checkpoint of another system into a model of this package, or vice versa",
    "export": "write a trained model for other runtimes: ONNX, CTranslate2, llama.cpp",
    "serve": "answer requests over HTTP by a causal model, with the server of transformers",
    "verify": "check that a checkpoint and its conversion compute the same numbers",
}
# torch keeps 1,024 kernels of oneDNN, which multiplies bfloat16, each for one shape. Batches
# without padding have new shapes all the time, of which gigabytes would be kept. The limits are
# read before the first product.
_KERNELS_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `roformer-lite`; returns the exit status. Bad input ends with a message and status 2, no
    traceback."""
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="roformer-lite",
        description="Train and use compact Transformers with rotary positions.",
        epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"roformer-lite {version('hf_roformer_lite')}"
    )
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND")
    parser.add_argument(
        "options", nargs=argparse.REMAINDER, help="`roformer-lite COMMAND --help` lists them"
    )
    arguments = parser.parse_args(argv)
    for name, kept in _KERNELS_KEPT.items():
        os.environ.setdefault(name, kept)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal shows the number of a character that it lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    _set_up_logging()
    try:
        _check_encoding(arguments.options)
        options = _import(".command_options")
        given = options.PARSERS[arguments.command](arguments.options)
        # The options are parsed with transformers, which is therefore imported by now. Its bars of
        # loading and saving weights say nothing.
        import_module("transformers").logging.disable_progress_bar()
        command = _import(f".commands.{arguments.command}")
        command.main(*given)
    except InputError as error:
        print(f"roformer-lite {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        can_continue = arguments.command in ("train", "demo")
        continues = (
            "; the same command continues from the last checkpoint, if there is one"
            if can_continue
            else ""
        )
        print(f"\nroformer-lite {arguments.command}: interrupted{continues}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of the output, for example `head`, has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        if not (told := _resource_error(error)):
            raise
        print(f"roformer-lite {arguments.command}: error: {told}", file=sys.stderr)
        return 2
    return 0


def _import(name: str) -> ModuleType:
    """Import a module of this package and the libraries that it needs. These create a million
    permanent objects, and searching them for garbage would take a second."""
    gc.disable()
    try:
        return import_module(name, __package__)
    finally:
        gc.enable()


def _resource_error(error: BaseException) -> str:
    """A message for errors of the machine or of a library, such as a lack of memory; empty for all
    other errors."""
    # torch has an `OutOfMemoryError` of its own.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return (
            f"there is not enough memory: {error}; use smaller batches, shorter texts or a smaller "
            "model"
        )
    if is_disk_full(error, Path(gettempdir())):
        return (
            "no space left on the disk, or a file larger than `ulimit -f` allows: "
            f"{error.__cause__ or error}"
        )
    # The tokenizers library panics in Rust, which raises no `Exception`.
    if type(error).__name__ == "PanicException":
        return (
            f"the tokenizer cannot encode one of the texts: {error}; use another tokenizer, or "
            "repair its tokenizer.json"
        )
    return ""


def _set_up_logging() -> None:
    """Show our own warnings, but only the errors of libraries, because their warnings are about
    their own code and would precede every result. The environment variables of the libraries and
    Python's option -W enable them again."""
    handler = logging.StreamHandler()
    handler.addFilter(_is_ours_or_an_error)
    logging.basicConfig(format="%(levelname)s: %(message)s", handlers=[handler])
    os.environ.setdefault("TORCH_LOGS", "-all")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _is_ours_or_an_error(record: logging.LogRecord) -> bool:
    is_ours = record.name.partition(".")[0] in ("roformer_lite", "hf_roformer_lite")
    return is_ours or record.levelno >= logging.ERROR


def _check_encoding(options: Sequence[str]) -> None:
    for before, argument in zip(("", *options), options, strict=False):
        # Python reads other bytes in the same way.
        if any("\ud800" <= character <= "\udfff" for character in argument):
            option = f"{before} " if before.startswith("--") else ""
            raise InputError(f"{option}{argument!r}: not UTF-8")


if __name__ == "__main__":
    sys.exit(main())
