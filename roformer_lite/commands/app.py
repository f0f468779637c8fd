"""`roformer-lite app`: a page in the browser for trying a model. It shows the predictions of
`predict` for the texts of a visitor."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import gradio
import torch
from gradio.components import Component
from transformers import set_seed

from ..answers import SavedModel, open_model
from ..data.data_files import numbered_lines
from ..errors import InputError
from ..export.formats import Engine
from ..options.models import SEED
from ..recipes.base import Answer
from ..recipes.classify import NO_LABEL
from .app_options import AppArguments

_BATCH_SIZE = 32
# This is the limit for one click; `predict` has none.
_MAX_CHARACTERS = 200_000
_MAX_SCORES = 10
_EXAMPLES = {
    "classify": "It was better than I had expected, and far too long.",
    "tag": "Ann Lee met Bob in Rome on Monday.",
    "seq2seq": "the twenty-first of June 1987",
    "causal": "Once upon a time",
    "mlm": "It was a {mask} film.",
}
_COMPARED = "a film that I liked\nIt was a fine film.\nThe train is late.\nI enjoyed every minute."


def main(options: AppArguments, directory: str) -> None:
    """Run `roformer-lite app DIR` until the process is stopped."""
    texts = []
    if options.texts is not None:
        texts = [line for _, line in numbered_lines(options.texts) if line.strip()]
    page = open_page(
        directory,
        texts=texts,
        engine=options.engine,
        device=options.device,
        server_name=options.host,
        server_port=options.port,
    )
    page.block_thread()


def open_page(
    name: str,
    texts: Sequence[str] = (),
    engine: Engine = "torch",
    device: str | None = None,
    **address: Any,
) -> gradio.Interface:
    """Open the page. It is not shared on the internet, and nothing is reported to Gradio's makers.

    Args:
        name: The directory of the model, or its name on the Hub.
        texts: As for `Page`.
        engine, device: As for `open_model`.
        **address: `server_name` and `server_port` of Gradio's `launch`.

    Returns:
        The page, which a thread of this process serves.

    Raises:
        InputError: if the model cannot be loaded, or the page cannot be opened at this address.
    """
    page = Page(open_model(name, device=device, engine=engine), texts)
    interface = page.build(title=Path(name).resolve().name)
    try:
        interface.launch(
            show_error=True,  # Visitors read what is wrong with their text.
            max_file_size=1,  # The page needs no files, so it accepts none above one byte.
            theme=gradio.themes.Default(),  # The fonts of this theme come with Gradio.
            share=False,
            ssr_mode=False,  # This would start a second server, which needs Node.
            footer_links=["api"],
            run_history=False,  # Otherwise the browser would store the texts of visitors.
            quiet=True,
            prevent_thread_lock=True,
            **address,
        )
    except OSError as error:
        raise InputError(
            f"no page can be opened there: {error}; choose another --port or --host"
        ) from error
    print(f"{interface.title}: {interface.local_url}", flush=True)
    return interface


class Page:
    """A page for a saved model.

    Args:
        saved: The model, as `roformer-lite predict` opens it.
        texts: The examples; for a model that compares texts, a query and the texts to be compared
            with it. Default: examples for the task.
    """

    def __init__(self, saved: SavedModel, texts: Sequence[str] = ()):
        self.saved = saved
        self.recipe = saved.recipe
        self.task = saved.recipe.name
        self.compares = self.task in ("embed", "rerank")
        default = _EXAMPLES.get(self.task, _COMPARED)
        mask = saved.tokenizer.mask_token
        texts = list(texts) or default.format(mask=mask).split("\n")
        if self.compares:
            self.names = ["Query", "Texts, one on each line"]
            self.examples = [[texts[0], "\n".join(texts[1:])]]
        elif self.recipe.takes_pairs:
            self.names = ["First text", "Second text"]
            self.examples = [(text.split("\t") * 2)[:2] for text in texts]
        else:
            self.names = ["Text"]
            self.examples = [[text] for text in texts]

    def build(self, title: str) -> gradio.Interface:
        """The page with the endpoint `/answer`.

        Gradio serves one visitor at a time, because all visitors share the model and the random
        state.
        """
        boxes = [
            gradio.Textbox(value=text, label=name, lines=3, max_lines=12)
            for text, name in zip(self.examples[0], self.names, strict=True)
        ]
        return gradio.Interface(
            fn=self.show,
            inputs=boxes,
            outputs=self._answer_component(),
            additional_inputs=self._settings_of_generation(),
            examples=self.examples if len(self.examples) > 1 else None,
            cache_examples=False,
            title=title,
            submit_btn="Answer",
            flagging_mode="never",  # Flags would write the texts of visitors to a file.
            api_name="answer",
            concurrency_limit=1,
            analytics_enabled=False,
        )

    def _answer_component(self) -> Component:
        if self.compares:
            return gradio.Dataframe(
                label="Most similar first", headers=["score", "text"], wrap=True
            )
        if self.task == "classify":
            return gradio.Label(label="Answer")
        if self.task == "tag":
            return gradio.HighlightedText(label="Answer", show_legend=True)
        return gradio.Textbox(label="Answer", lines=3, buttons=["copy"])

    def _settings_of_generation(self) -> list[Component]:
        settings: list[Component] = []
        if self.task in ("seq2seq", "causal"):
            settings.append(
                gradio.Number(
                    label="Maximum number of new tokens", precision=0, minimum=1, maximum=1024
                )
            )
        if self.task == "causal":
            settings.append(gradio.Number(label="Temperature", minimum=0.1, maximum=2))
        return settings

    def show(self, *values: Any) -> Any:
        """The prediction for the texts in the boxes, in the form that its component needs.

        Args:
            *values: The texts; for a model that generates text, also the maximum number of new
                tokens and the temperature, where None stands for the default of `predict`.

        Raises:
            InputError: if a box is empty, or if the texts are too long.
        """
        texts = [(text or "").strip() for text in values[: len(self.names)]]
        if not all(texts):
            raise InputError("a box is empty; write a text into it")
        size = sum(map(len, texts))
        if size > _MAX_CHARACTERS:
            raise InputError(
                f"the texts have {size:,} characters, but the page reads at most {_MAX_CHARACTERS:,}; "
                "use `roformer-lite predict`"
            )
        if self.compares:
            return self._rank(texts[0], [line for line in texts[1].split("\n") if line.strip()])
        names = ("max_new_tokens", "temperature")
        given = zip(names, values[len(texts) :], strict=False)
        options = {name: value for name, value in given if value is not None}
        (answer,) = self._answers(["\t".join(texts)], options)
        columns = self.recipe.show(answer, options).columns
        if self.task == "classify" and len(answer) > 1 and columns["label"] != NO_LABEL:
            return {label: round(score, 4) for label, score in islice(answer.items(), _MAX_SCORES)}
        if self.task == "tag":
            return self._tagged(self.recipe.input_of_line(texts[0]), columns["tags"])
        return next(iter(columns.values()))

    def _answers(self, lines: list[str], options: dict[str, Any]) -> list[Answer]:
        """The answers of `predict` to the same lines with the same options."""
        set_seed(SEED)
        inputs = [self.recipe.input_of_line(line) for line in lines]
        return list(self.saved.answers(inputs, batch_size=_BATCH_SIZE, options=options))

    def _rank(self, query: str, others: list[str]) -> list[tuple[float, str]]:
        """Texts with the scores of their pairs with a query, or with the cosines of their
        embeddings, in descending order."""
        if self.recipe.takes_pairs:
            answers = self._answers([f"{query}\t{text}" for text in others], {})
            scores = [answer["score"] for answer in answers]
        else:
            answers = self._answers([query, *others], {})
            own, *vectors = (torch.tensor(answer["embedding"]) for answer in answers)
            scores = torch.cosine_similarity(own, torch.stack(vectors)).tolist()
        rounded = [round(score, 4) for score in scores]
        return sorted(zip(rounded, others, strict=True), reverse=True)

    def _tagged(self, tokens: list[str], tags: list[str]) -> list[tuple[str, str | None]]:
        """The tokens of a sentence, each with its tag, or with None instead of O."""
        space = "" if self.recipe.unit == "characters" else " "
        return [
            (token + space, None if tag == "O" else tag)
            for token, tag in zip(tokens, tags, strict=True)
        ]
