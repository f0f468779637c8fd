"""The page of one model: a text with its answer and the reasons, several texts with a table, and options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio
import torch
from transformers.utils.logging import disable_progress_bar

from ..errors import InputError
from ..output import RESULTS_FILE
from ..predict.predictor import Predictor
from ..saved_model import read_optional_object
from .trial import Trial, lines_of

# On a narrow screen the answer stands above the boxes, where a visitor sees it without scrolling.
_CSS = "@media (max-width: 700px) { .answer { order: -1; } }"
_SHOWN_LABELS = 30


def open_page(
    name: str,
    texts: Sequence[str] = (),
    host: str | None = None,
    port: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    engine: str = "torch",
    title: str | None = None,
    wait: bool = True,
) -> gradio.Blocks:
    """Answer visitors until the process is ended. No link is shared, and nothing is reported to Gradio's makers.

    Args:
        name: Directory of the model, or its name on the Hub.
        texts: As for `Trial`.
        host: Where to listen. Default: `GRADIO_SERVER_NAME`, which Spaces set, or 127.0.0.1.
        port: Default: `GRADIO_SERVER_PORT`, or the first free one from 7860.
        device, engine: As for `Predictor.load`.
        dtype: Type of the weights. Default: as saved.
        title: Stands above the page. Default: the last part of `name`.
        wait: Whether to return only when the process is ended.

    Raises:
        InputError: when the model cannot be loaded, or the page cannot be opened at this address.
    """
    disable_progress_bar()  # of loading the weights
    predictor = Predictor.load(name, device, engine=engine)
    if dtype is not None:
        predictor.saved.model.to(getattr(torch, dtype))
    trial, results = Trial(predictor, texts), read_optional_object(name, RESULTS_FILE)
    page = build_page(trial, title or Path(name).resolve().name, describe(trial, results))
    try:
        page.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            show_error=True,  # visitors read what is wrong with their text
            max_file_size=1,  # byte: the page needs no files
            css=_CSS,
            theme=gradio.themes.Default(),  # whose fonts come with Gradio
            share=False,
            ssr_mode=False,  # a second server, of Node
            footer_links=["api"],
            run_history=False,  # else the browser keeps what its visitor wrote
            quiet=True,
        )
    except OSError as error:
        raise InputError(f"no page can be opened there: {error}; choose another --port or --host") from error
    print(f"{page.title}: {page.local_url}", flush=True)
    if wait:
        page.block_thread()
    return page


def build_page(trial: Trial, title: str, description: str = "") -> gradio.Blocks:
    """The page of a model, with the endpoints `/answer` and `/table`; `description` is Markdown."""
    boxes, (shown, *reasons), options = trial.boxes(), trial.outputs(), trial.options()

    def answer(*values: Any) -> Any:
        given = [text or "" for text in values[: len(boxes)]]
        found = trial.show(given, dict(zip(options, values[len(boxes) :], strict=True)))
        return found if reasons else found[0]

    def answer_all(text: str, *values: Any) -> dict[str, Any]:
        lines = lines_of(text or "")
        answers = trial.answer(lines, dict(zip(options, values, strict=True)))
        cells = [[" ".join(x) if isinstance(x, list) else x for x in found.columns.values()] for found in answers]
        data = [[*row, line] for row, line in zip(cells, lines, strict=True)]
        return {"headers": [*answers[0].columns, "text"], "data": data}

    with gradio.Blocks(title=title, analytics_enabled=False) as page:
        gradio.Markdown(f"# {title}\n\n{description}")
        with gradio.Tab("Query" if trial.compares else "One text"):
            with gradio.Row():
                with gradio.Column():
                    for box in boxes:
                        box.render()
                    ask = gradio.Button("Answer", variant="primary")
                    gradio.Examples(trial.examples, boxes, label="Examples", visible=len(trial.examples) > 1)
                with gradio.Column(elem_classes="answer"):
                    shown.render()
            with gradio.Row():
                for reason in reasons:
                    reason.render()
        with gradio.Tab("Several texts", visible=not trial.compares):
            label = "Texts, one a line" + (", with a tab between the two of a pair" if trial.takes_pairs else "")
            lines = gradio.Textbox(label=label, lines=8, max_lines=20)
            ask_all = gradio.Button("Answer all", variant="primary")
            table = gradio.Dataframe(label="Answers", headers=["answer", "text"], wrap=True, max_chars=200)
        with gradio.Accordion("Options", open=False, visible=bool(options)), gradio.Row():
            for option in options.values():
                option.render()
        inputs, outputs = [*boxes, *options.values()], [shown, *reasons]
        gradio.on([ask.click, *(box.submit for box in boxes)], answer, inputs, outputs, api_name="answer")
        page.load(answer, inputs, outputs, api_visibility="private")
        ask_all.click(answer_all, [lines, *options.values()], table, api_name="table")
    return page


def describe(trial: Trial, results: dict[str, Any]) -> str:
    """The labels of a model and the result of its test, or of its validation, as far as `results` tell it."""
    lines, config = [], trial.saved.model.config
    if trial.task in ("classify", "tag") and config.num_labels > 1:
        tags = [tag for tag in config.id2label.values() if tag != "O" or trial.task == "classify"]
        names = list(dict.fromkeys(tag[2:] if tag[:2] in ("B-", "I-") else tag for tag in tags))
        more = f" and {len(names) - _SHOWN_LABELS} more" if len(names) > _SHOWN_LABELS else ""
        lines.append("**Labels:** " + ", ".join(f"`{name}`" for name in names[:_SHOWN_LABELS]) + more)
    metric, measured, rows = results.get("main_metric"), results.get("metrics", {}), results.get("rows", {})
    for split in ("test", "validation"):
        if metric in measured.get(split, {}):
            title = metric.replace("_", " ").capitalize()
            size = f", {rows[split]:,} examples" if split in rows else ""
            return "\n\n".join([*lines, f"**{title} on the {split} data:** {measured[split][metric]:.3f}{size}"])
    return "\n\n".join(lines)
