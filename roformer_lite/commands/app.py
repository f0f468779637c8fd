"""`roformer-lite app`: a page in the browser on which a model is tried."""

import socket
from dataclasses import dataclass, field

from ..engines import ENGINES, check_engine, check_engine_name
from ..errors import InputError, check_file, check_number
from ..model_name import check_model_name
from .command_parser import CommandParser
from .required_packages import require_packages

_DTYPES = ("float32", "bfloat16", "float16")
_OF_THE_SERVER = ("host", "port", "device", "dtype")  # options that a Space decides itself


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
    dtype: str | None = field(
        default=None, metadata={"help": f"Type of the weights: {', '.join(_DTYPES)}. Default: as saved."}
    )
    engine: str = field(
        default="torch",
        metadata={
            "help": f"What computes: {', '.join(ENGINES)}. All but torch read what `roformer-lite export` wrote."
        },
    )
    texts: str | None = field(
        default=None,
        metadata={"help": "UTF-8 file of texts, one a line, that models for comparing texts compare with a query."},
    )
    space: str | None = field(
        default=None,
        metadata={"help": "Write a folder for the Hub's Spaces there, and open no page. It must not exist yet."},
    )

    def __post_init__(self):
        check_number("port", self.port, at_least=1, at_most=65535)
        if self.dtype not in (None, *_DTYPES):
            raise InputError(f"--dtype {self.dtype} is unknown; choose one of {', '.join(_DTYPES)}")
        check_engine_name(self.engine)
        if self.engine != "torch" and self.dtype is not None:
            raise InputError(f"--dtype {self.dtype} is for --engine torch; {self.engine} computes as it was exported")
        if self.texts is not None:
            check_file("texts", self.texts)
        if self.space is None:
            check_address(self.host, self.port)
            return
        for name in _OF_THE_SERVER:
            if getattr(self, name) is not None:
                raise InputError(f"--{name} {getattr(self, name)} has no effect beside --space, which opens no page")
        if self.engine != "torch":
            raise InputError(f"--engine {self.engine} is not for --space; a Space computes with torch")


def check_address(host: str | None, port: int | None) -> None:
    """Refuse an address that cannot be listened at, before a model is loaded.

    Raises:
        InputError: naming host, port and reason.
    """
    if host is None and port is None:
        return
    if host == "":
        raise InputError("--host is empty; give the name or the address of this machine, such as 127.0.0.1")
    try:
        with socket.socket(socket.AF_INET6 if ":" in (host or "") else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a server that has just ended
            tried.bind((host or "127.0.0.1", port or 0))
    except (OSError, UnicodeError) as error:
        option = f"--host {host}" if port is None else f"--port {port}" + (f", --host {host}" if host else "")
        raise InputError(f"{option}: no page can be opened there: {error}") from error


def main(argv: list[str]) -> None:
    """Run `roformer-lite app DIR`."""
    parser = CommandParser(
        "app",
        "Open a page in the browser on which a model is tried: answers with their scores, several texts at once, and "
        "where the model looked.",
        [AppArguments],
        DIR="the model's directory, or its name on the Hub",
    )
    options, paths = parser.parse(argv)
    check_model_name(paths.dir)
    check_engine(options.engine, paths.dir, options.device)
    require_packages("a page", {"gradio": "app"})
    if options.space is not None:
        from ..app.space import write_space

        out = write_space(paths.dir, options.space, options.texts)
        print(
            f"{out}: try it with `python {out / 'app.py'}`, publish it with `hf upload NAME {out} --repo-type space`"
        )
        return
    from ..app.launch import open_page

    open_page(
        paths.dir,
        texts=options.texts,
        host=options.host,
        port=options.port,
        device=options.device,
        dtype=options.dtype,
        engine=options.engine,
    )
