"""The page of one model: a text with its answer and the reasons, several texts with a table, and options."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio
import torch
from transformers.utils.logging import disable_progress_bar

from ..commands.predictor import Predictor
from ..errors import InputError
from ..output_directory import RESULTS_FILE
from ..saved_files import read_optional_object
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
        device: Where to compute. Default: the first GPU, if there is one.
        dtype: Type of the weights. Default: as saved.
        engine: What computes; see `Predictor.load`.
        title: Stands above the page. Default: the last part of `name`.
        wait: Whether to return only when the process is ended.

    Raises:
        InputError: when the model cannot be loaded, or the page cannot be opened at this address.
    """
    disable_progress_bar()  # of loading the weights
    predictor = Predictor.load(name, device, engine=engine)
    if dtype is not None:
        predictor.saved.model.to(getattr(torch, dtype))
    page = build_page(Trial(predictor, texts), name, title)
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


def build_page(trial: Trial, name: str, title: str | None = None) -> gradio.Blocks:
    """The page of a model, with the endpoints `/answer` and `/table`.

    Args:
        trial: The model.
        name: Its directory, or its name on the Hub.
        title: As in `open_page`.
    """
    title, boxes, shown, options = title or Path(name).resolve().name, trial.boxes(), trial.outputs(), trial.options()
    reasons = []
    has_attention = trial.is_module and trial.saved.tokenizer.is_fast and not trial.compares
    if has_attention:
        label = "Where the model looked: attention of the last layer"
        reasons.append(gradio.HighlightedText(label=label, min_width=320))
    if trial.has_ngrams:
        reasons.append(gradio.Dataframe(label="Strongest n-grams, by what they add to the label", min_width=320))

    def answer(*values: Any) -> Any:
        given = [text or "" for text in values[: len(boxes)]]
        found = trial.show(given, dict(zip(options, values[len(boxes) :], strict=True)))
        if trial.has_ngrams:
            label = max(found[0], key=found[0].get) if isinstance(found[0], dict) else "value"
            found = [*found, trial.ngrams(given, label)]
        if has_attention:
            found.insert(len(shown), trial.attention(given))
        return found if len(found) > 1 else found[0]

    def answer_all(text: str, *values: Any) -> dict[str, Any]:
        lines = lines_of(text or "")
        answers = trial.answer(lines, dict(zip(options, values, strict=True)))
        cells = [[" ".join(x) if isinstance(x, list) else x for x in found.columns.values()] for found in answers]
        data = [[*row, line] for row, line in zip(cells, lines, strict=True)]
        return {"headers": [*answers[0].columns, "text"], "data": data}

    with gradio.Blocks(title=title) as page:
        gradio.Markdown(f"# {title}\n\n{_description(trial, read_optional_object(name, RESULTS_FILE))}")
        with gradio.Tab("One text" if not trial.compares else "Compare"):
            with gradio.Row():
                with gradio.Column():
                    for box in boxes:
                        box.render()
                    ask = gradio.Button("Answer", variant="primary")
                    gradio.Examples(trial.examples, boxes, label="Examples")
                with gradio.Column(elem_classes="answer"):
                    for component in shown:
                        component.render()
            with gradio.Row():
                for component in reasons:
                    component.render()
        with gradio.Tab("Several texts", visible=not trial.compares):
            label = "Texts, one a line" + (", with a tab between the two of a pair" if trial.takes_pairs else "")
            lines = gradio.Textbox(label=label, lines=8, max_lines=20)
            ask_all = gradio.Button("Answer all", variant="primary")
            table = gradio.Dataframe(label="Answers", wrap=True, max_chars=200)
        with gradio.Accordion("Options", open=False, visible=bool(options)), gradio.Row():
            for component in options.values():
                component.render()
        inputs = [*boxes, *options.values()]
        gradio.on([ask.click, *(box.submit for box in boxes)], answer, inputs, [*shown, *reasons], api_name="answer")
        page.load(answer, inputs, [*shown, *reasons], api_visibility="private")
        if not trial.compares:
            ask_all.click(answer_all, [lines, *options.values()], table, api_name="table")
    return page


def _description(trial: Trial, results: dict[str, Any]) -> str:
    """The labels of a model and the result of its test, or of its validation, where it had one."""
    lines = []
    config = trial.saved.model.config
    if trial.task in ("classify", "tag") and config.num_labels > 1:
        tags = config.id2label.values()
        names = list(dict.fromkeys(tag[2:] if tag[:2] in ("B-", "I-") else tag for tag in tags))
        more = f" and {len(names) - _SHOWN_LABELS} more" if len(names) > _SHOWN_LABELS else ""
        lines.append("**Labels:** " + ", ".join(f"`{name}`" for name in names[:_SHOWN_LABELS]) + more)
    metric, measured = results.get("main_metric"), results.get("metrics", {})
    split = next((split for split in ("test", "validation") if metric in measured.get(split, {})), None)
    if split is not None:
        rows = results.get("rows", {}).get(split)
        lines.append(
            f"**{metric.capitalize()} on the {split} data:** {measured[split][metric]:.3f}"
            + (f", {rows:,} examples" if rows else "")
        )
    return "\n\n".join(lines)
