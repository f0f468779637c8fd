"""`roformer-lite app`: a page in the browser on which a model is tried."""

import argparse
from pathlib import Path

from ..errors import InputError, check_number
from .required_packages import require_packages


def main(argv: list[str]) -> None:
    """Run `roformer-lite app DIR`."""
    parser = argparse.ArgumentParser(
        "roformer-lite app",
        description="Open a page in the browser on which a model is tried: answers with their scores and reasons, and "
        "several texts at once.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("dir", metavar="DIR", help="the model's directory, or its name on the Hub")
    add("--host", help="Where to listen. Default: 127.0.0.1, which this machine alone can reach.")
    add("--port", type=int, help="Port to listen at. Default: the first free one from 7860.")
    add("--device", help="cpu, cuda, cuda:1 … Default: cuda if there is one.")
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="Type of the weights. Default: as saved.")
    add(
        "--engine",
        default="torch",
        choices=("torch", "onnx", "openvino", "ctranslate2"),
        help="What computes. All but torch read what `roformer-lite export` wrote. Default: torch.",
    )
    add(
        "--texts",
        metavar="FILE",
        help="UTF-8 file of examples, one a line; for models that compare texts, a query and its candidates.",
    )
    add("--space", metavar="OUT", help="Write a folder for the Hub's Spaces there, and open no page.")
    options = parser.parse_args(argv)
    check_number("port", options.port, at_least=1, at_most=65535)
    if options.engine != "torch" and (options.dtype is not None or options.space is not None):
        raise InputError(f"--engine {options.engine} can't be combined with --dtype or --space, which are for torch")
    require_packages("a page", {"gradio": "app"})
    texts = [] if options.texts is None else _read_texts(options.texts)

    from ..engines import check_engine  # these import torch
    from ..model_name import check_model_name

    check_model_name(options.dir)
    check_engine(options.engine, options.dir, options.device)
    if options.space is not None:
        from ..app.space import write_space

        out = write_space(options.dir, options.space, texts)
        print(f"{out}: try it with `python {out}/app.py`, publish it with `hf upload NAME {out} --repo-type space`")
        return
    from ..app.page import open_page

    open_page(options.dir, texts, options.host, options.port, options.device, options.dtype, options.engine)


def _read_texts(path: str) -> list[str]:
    try:
        return [line for line in Path(path).read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--texts {path}: cannot be read: {error}") from error
