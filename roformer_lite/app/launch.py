"""Load a model and open its page."""

from pathlib import Path

import gradio
import torch
from starlette.middleware import Middleware
from transformers.utils.logging import disable_progress_bar

from ..commands.predictor import Predictor
from ..errors import InputError
from ..training.data_files import numbered_lines
from .guard import Guard
from .page import CSS, build_page
from .trial import MOST_LINES, Trial
from .views import COMPARING


def load_trial(name: str, device: str | None = None, dtype: str | None = None, engine: str = "torch") -> Trial:
    """The model at `name`, as `roformer-lite predict` loads it.

    Args:
        name: Directory of the model, or its name on the Hub.
        device: Where it shall compute. Default: the first GPU, if there is one.
        dtype: Type of the weights, such as `bfloat16`. Default: as saved.
        engine: What computes; see `Predictor.load`.

    Raises:
        InputError: when the model cannot be loaded, as with `predict`.
    """
    disable_progress_bar()  # of loading the weights
    predictor = Predictor.load(name, device, engine=engine)
    if dtype is not None:
        predictor.saved.model.to(getattr(torch, dtype))
    return Trial(predictor)


def open_page(
    name: str,
    title: str | None = None,
    texts: str | None = None,
    host: str | None = None,
    port: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    engine: str = "torch",
) -> None:
    """Answer visitors until the process is ended. No link is shared, nothing is reported to anybody, and no file of
    theirs is taken.

    Args:
        name: Directory of the model, or its name on the Hub.
        title: Stands above the page. Default: the last part of `name`.
        texts: A file of UTF-8 text, whose lines a model for comparing texts compares with a query.
        host: Where to listen. Default: as `GRADIO_SERVER_NAME` says, which the Hub's Spaces set, or 127.0.0.1.
        port: Default: as `GRADIO_SERVER_PORT` says, or the first free one from 7860.
        device, dtype, engine: As in `load_trial`.

    Raises:
        InputError: when the model cannot be loaded, or compares no texts, or the address cannot be listened at.
    """
    lines = read_texts(texts)  # a mistake there is told before the model is loaded
    trial = load_trial(name, device, dtype, engine)
    check_texts(texts, trial)
    launch(build_page(trial, title or Path(name).resolve().name, lines), host, port)


def launch(page: gradio.Blocks, host: str | None = None, port: int | None = None, wait: bool = True) -> None:
    """Open a page on this machine alone unless `host` says otherwise.

    Args:
        page: As `build_page` makes it.
        host, port: As in `open_page`.
        wait: Whether to return only when the process is ended.

    Raises:
        InputError: when the address cannot be listened at.
    """
    try:
        page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            css=CSS,
            theme=gradio.themes.Default(),  # its fonts come with Gradio
            share=False,
            ssr_mode=False,  # a second server, of Node
            footer_links=["api"],
            run_history=False,  # else the browser keeps what its visitor wrote
            num_workers=0,  # processes that would take files before the guard
            quiet=True,
            app_kwargs={"middleware": [Middleware(Guard)]},
        )
    except OSError as error:
        raise InputError(
            f"the page cannot be opened at {host or 'this machine'}, port {port or 7860}: {error}"
        ) from error
    print(f"{page.title}: {page.local_url}", flush=True)
    if wait:
        page.block_thread()


def read_texts(path: str | None) -> str:
    """The lines of a file, empty without one.

    Raises:
        InputError: when it is no UTF-8 text, or has more lines than the page takes.
    """
    lines = [] if path is None else [line for _, line in numbered_lines(path)]
    if len(lines) > MOST_LINES:
        raise InputError(f"--texts {path}: {len(lines)} lines; the page compares {MOST_LINES} at most")
    return "\n".join(lines)


def check_texts(path: str | None, trial: Trial) -> None:
    """Refuse texts to compare with a model that compares none.

    Raises:
        InputError: naming the tasks whose models do.
    """
    task = trial.task.name
    if path is not None and task not in COMPARING:
        raise InputError(
            f"--texts {path}: this model is for {task}, and compares no texts; leave the option out, or give a model "
            f"for {', '.join(COMPARING)}"
        )
