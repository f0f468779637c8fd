"""The page: one text with its answer and where the model looked, several texts with a table, and the options."""

import base64
import csv
import io
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import gradio
from gradio.components import Component

from ..errors import InputError
from .attention import AttentionMaps, attention_table
from .options import given_options, option_fields
from .trial import Trial
from .views import VIEWS, View, lines_of

CSS = """
div.attention { overflow-x: auto; }
table.attention { width: auto !important; font-size: 0.8rem; border: none !important; }
table.attention th { font-weight: normal; white-space: pre; padding: 1px 4px; text-align: right; }
table.attention tr, table.attention th, table.attention tr:first-child td { border: none !important; }
table.attention th[scope=col] { vertical-align: bottom; padding: 4px 1px; }
table.attention th[scope=col] span { writing-mode: vertical-rl; transform: rotate(180deg); }
table.attention td { min-width: 1.4rem; height: 1.4rem; padding: 0; border: 1px solid rgba(128, 128, 128, 0.25); }
"""
_MEAN = "mean of all heads"


def build_page(trial: Trial, title: str, texts: str = "") -> gradio.Blocks:
    """The page of one model. Its functions are also endpoints: `/answer`, `/attention` and `/table`.

    Args:
        trial: The model.
        title: Stands above it.
        texts: What is compared, one text a line, with models that compare texts.
    """
    view = VIEWS[trial.task.name](trial, texts)
    with gradio.Blocks(title=title, analytics_enabled=False) as page:
        gradio.Markdown(f"# {title}\n{trial.task.summary}")
        with gradio.Tab("One text"):
            with gradio.Row():
                with gradio.Column():
                    boxes = view.boxes()
                    ask = gradio.Button("Answer", variant="primary")
                with gradio.Column():
                    outputs = view.outputs()
            picture = _attention_part(trial) if trial.has_attention else None
        with gradio.Tab("Several texts"):
            several = _several_part(trial)
        options = _options_part(view)
        _connect_one(view, ask, boxes, options, outputs, picture)
        _connect_several(view, several, options)
    return page


@dataclass(frozen=True)
class _Picture:
    layer: gradio.Dropdown
    head: gradio.Dropdown
    table: gradio.HTML


@dataclass(frozen=True)
class _Several:
    lines: gradio.Textbox
    ask: gradio.Button
    table: gradio.Dataframe
    link: gradio.HTML


def _attention_part(trial: Trial) -> _Picture:
    maps = trial.attention(["a", "a"] if trial.takes_pairs else "a", {"max_new_tokens": 1})
    heads = max(kind.probabilities.shape[1] for kind in maps)
    with gradio.Accordion("Where the model looked", open=False):
        gradio.Markdown("A row is a token that looks; the darker a cell, the more it takes from the token above.")
        with gradio.Row():
            last = f"{maps[0].name}, layer {len(maps[0].probabilities)}"
            layer = gradio.Dropdown(list(_layers(maps)), value=last, label="Attention")
            head = gradio.Dropdown([_MEAN, *(f"head {number + 1}" for number in range(heads))], label="Head")
        table = gradio.HTML()
    return _Picture(layer, head, table)


def _layers(maps: list[AttentionMaps]) -> dict[str, tuple[AttentionMaps, int]]:
    """Every layer of every kind of attention, by the name that visitors choose."""
    return {
        f"{kind.name}, layer {layer + 1}": (kind, layer) for kind in maps for layer in range(len(kind.probabilities))
    }


def _several_part(trial: Trial) -> _Several:
    columns = trial.task.answer_columns(trial.saved, {})
    label = "Pairs of texts, one a line, with a tab between the two" if trial.takes_pairs else "Texts, one a line"
    lines = gradio.Textbox(label=label, lines=8)
    ask = gradio.Button("Answer all", variant="primary")
    table = gradio.Dataframe(label="Answers", headers=["text", *columns], wrap=True, max_chars=200, interactive=False)
    return _Several(lines, ask, table, gradio.HTML())


def _options_part(view: View) -> list[Component]:
    if not view.option_names:
        return []
    with gradio.Accordion("Options", open=False), gradio.Row():
        return option_fields(view.trial.task.name, view.option_names)


def _connect_one(
    view: View,
    ask: gradio.Button,
    boxes: list[Component],
    options: list[Component],
    outputs: list[Component],
    picture: _Picture | None,
) -> None:
    def answer(*values: Any) -> Any:
        texts = [text or "" for text in values[: len(boxes)]]
        if not all(map(str.strip, texts)):
            raise InputError("nothing to answer: a box is empty")
        shown = view.show(texts, given_options(view.option_names, values[len(boxes) :]))
        return shown if len(shown) > 1 else shown[0]

    def look(layer: str, head: str, *values: Any) -> str:
        texts = [text or "" for text in values[: len(boxes)]]
        if not all(map(str.strip, texts)):
            return ""
        maps = _layers(
            view.trial.attention(view.input_of(*texts), given_options(view.option_names, values[len(boxes) :]))
        )
        number = None if head == _MEAN else int(head.removeprefix("head ")) - 1
        return attention_table(*maps[layer], number)

    triggers = [ask.click, *(box.submit for box in boxes)]
    answered = gradio.on(triggers, _on_page(answer), [*boxes, *options], outputs, api_name="answer")
    if picture is not None:
        asked = {"fn": _on_page(look), "inputs": [picture.layer, picture.head, *boxes, *options]}
        answered.success(**asked, outputs=picture.table, api_name="attention")
        choices = [picture.layer.change, picture.head.change]
        gradio.on(choices, **asked, outputs=picture.table, api_visibility="private")


def _connect_several(view: View, several: _Several, options: list[Component]) -> None:
    def table(text: str, *values: Any) -> tuple[dict[str, Any], str]:
        lines = lines_of(text or "")
        if not lines:
            raise InputError("nothing to answer: there is no line with text")
        cells = view.trial.table(lines, given_options(view.option_names, values))
        headers, *rows = csv.reader(io.StringIO(cells, newline=""))
        return {"headers": headers, "data": rows}, _download(cells)

    inputs, outputs = [several.lines, *options], [several.table, several.link]
    several.ask.click(_on_page(table), inputs, outputs, api_name="table")


def _download(cells: str) -> str:
    """A link to a file that the page itself holds: nothing that visitors write is stored on the server."""
    content = base64.b64encode(cells.encode()).decode()
    return f'<a download="answers.csv" href="data:text/csv;charset=utf-8;base64,{content}">Download as .csv</a>'


def _on_page(function: Callable[..., Any]) -> Callable[..., Any]:
    """Tell visitors what is wrong with their input, and what the package warns of."""

    @wraps(function)
    def call(*values: Any) -> Any:
        try:
            with _shown_warnings():
                return function(*values)
        except InputError as error:
            raise gradio.Error(str(error), print_exception=False) from error

    return call


class _WarningsOnPage(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:  # others are about the text of another visitor
            gradio.Warning(record.getMessage())


@contextmanager
def _shown_warnings() -> Iterator[None]:
    package = logging.getLogger("roformer_lite")
    handler = _WarningsOnPage()
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)
