"""`roformer-lite app`: a page in the browser on which a model is tried. Texts go in, and the answer
of `predict` comes out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio
import torch
from gradio.components import Component
from transformers import set_seed

from ..answers import SavedModel, open_model
from ..command_options import SEED, AppArguments
from ..errors import InputError
from ..export.formats import Engine
from ..output import RESULTS_FILE
from ..recipes.base import Shown
from ..saved_model import read_optional_object

_BATCH_SIZE = 32
_MAX_CHARACTERS = 200_000  # One click may ask about so many; `predict` has no limit.
_MAX_LISTED_LABELS = 30
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
    """Run `roformer-lite app DIR`, until the process is ended."""
    page = open_page(
        directory,
        texts=_read_examples(options.texts),
        engine=options.engine,
        device=options.device,
        server_name=options.host,
        server_port=options.port,
    )
    page.block_thread()


def _read_examples(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--texts {path}: cannot be read: {error}") from error
    return [line for line in lines if line.strip()]


def open_page(
    name: str,
    texts: Sequence[str] = (),
    engine: Engine = "torch",
    device: str | None = None,
    **address: Any,
) -> gradio.Interface:
    """Answer visitors until the process is ended. No link is shared, and nothing is reported to
    Gradio's makers.

    Args:
        name: Directory of the model, or its name on the Hub.
        texts: As for `Page`.
        engine, device: As for `open_model`.
        **address: `server_name` and `server_port` of Gradio's `launch`.

    Raises:
        InputError: when the model cannot be loaded, or the page cannot be opened at this address.
    """
    page = Page(open_model(name, device=device, engine=engine), texts)
    description = page.describe(read_optional_object(name, RESULTS_FILE))
    interface = page.build(title=Path(name).resolve().name, description=description)
    try:
        interface.launch(
            show_error=True,  # Visitors read what is wrong with their text.
            max_file_size=1,  # The page needs no files, so none above one byte is taken.
            theme=gradio.themes.Default(),  # The fonts of this theme come with Gradio.
            share=False,
            ssr_mode=False,  # It would start a second server, in Node.
            footer_links=["api"],
            run_history=False,  # Else the browser keeps what its visitor wrote.
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
    """A saved model that visitors ask.

    Args:
        saved: As `roformer-lite predict` opens it.
        texts: Examples; with a model that compares texts, a query and the texts to compare with it.
            Default: of ours.
    """

    def __init__(self, saved: SavedModel, texts: Sequence[str] = ()):
        self.saved = saved
        self.recipe = saved.recipe
        self.task = saved.recipe.name
        self.compares = self.task in ("embed", "rerank")
        self.takes_pairs = saved.recipe.takes_pairs
        default = _EXAMPLES.get(self.task, _COMPARED)
        mask = saved.tokenizer.mask_token
        texts = list(texts) or default.format(mask=mask).split("\n")
        if self.compares:
            self.names = ["Query", "Texts, one a line"]
            self.examples = [[texts[0], "\n".join(texts[1:])]]
        elif self.takes_pairs:
            self.names = ["First text", "Second text"]
            self.examples = [(text.split("\t") * 2)[:2] for text in texts]
        else:
            self.names = ["Text"]
            self.examples = [[text] for text in texts]

    def build(self, title: str, description: str = "") -> gradio.Interface:
        """The page with the endpoint `/answer`; `description` is Markdown.

        Gradio answers one visitor after the other, because the model and the random numbers have
        one state.
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
            description=description,
            submit_btn="Answer",
            flagging_mode="never",  # It would write the texts of visitors into a file.
            api_name="answer",
            concurrency_limit=1,
            analytics_enabled=False,
        )

    def _answer_component(self) -> Component:
        if self.compares:
            return gradio.Dataframe(label="Nearest first", headers=["score", "text"], wrap=True)
        if self.task == "classify":
            return gradio.Label(label="Answer")
        if self.task == "tag":
            return gradio.HighlightedText(label="Answer", show_legend=True)
        return gradio.Textbox(label="Answer", lines=3, buttons=["copy"])

    def _settings_of_generation(self) -> list[Component]:
        settings: list[Component] = []
        if self.task in ("seq2seq", "causal"):
            settings.append(
                gradio.Number(label="Most new tokens", precision=0, minimum=1, maximum=1024)
            )
        if self.task == "causal":
            settings.append(gradio.Slider(0.1, 2, 0.8, label="Temperature"))
        return settings

    def describe(self, results: dict[str, Any]) -> str:
        """The labels of the model and the result of its test, or of its validation, as far as
        `results` has it."""
        lines = []
        config = self.saved.model.config
        if self.task in ("classify", "tag") and config.num_labels > 1:
            names = [f"`{name}`" for name in config.id2label.values()]
            if len(names) > _MAX_LISTED_LABELS:
                names[_MAX_LISTED_LABELS:] = [f"… ({len(names)} in all)"]
            lines.append(f"**Labels:** {', '.join(names)}")
        metric = results.get("main_metric")
        for split in ("test", "validation"):
            value = results.get("metrics", {}).get(split, {}).get(metric)
            if value is not None:
                title = metric.replace("_", " ").capitalize()
                lines.append(f"**{title} on the {split} data:** {value:.3f}")
                break
        threshold = getattr(self.recipe, "threshold", None)
        if threshold is not None:
            lines.append(f"`predict` gives a label only with a score of {threshold:.4f}.")
        limit = self.saved.tokenizer.model_max_length
        may_truncate = self.task in ("classify", "seq2seq") and limit < _MAX_CHARACTERS
        if may_truncate:  # Other tasks refuse a long text, or split it.
            lines.append(f"The model reads the first {limit:,} tokens of a text.")
        return "\n\n".join(lines)

    def show(self, *values: Any) -> Any:
        """The answer to the texts in the boxes, as its component takes it.

        Args:
            *values: The texts; with a model that generates, then the largest number of new tokens
                and the temperature, each of them None where the default of `predict` is meant.
        """
        texts = [text or "" for text in values[: len(self.names)]]
        names = ("max_new_tokens", "temperature")
        given = zip(names, values[len(texts) :], strict=False)
        options = {name: value for name, value in given if value is not None}
        if self.compares:
            return self._rank(texts[0], [line for line in texts[1].split("\n") if line.strip()])
        num_labels = getattr(self.saved.model.config, "num_labels", 1)
        if self.task == "classify" and num_labels > 1:
            options["top_k"] = min(num_labels, _MAX_SCORES)
        (answer,) = self._answer([texts if self.takes_pairs else texts[0]], options)
        if "top_k" in options:
            places = range(1, options["top_k"] + 1)
            columns = answer.columns
            return {columns[f"label_{place}"]: columns[f"score_{place}"] for place in places}
        if self.task == "tag":
            return self._tagged(answer.line)
        return next(iter(answer.columns.values()))

    def _answer(self, inputs: list[Any], options: dict[str, Any]) -> list[Shown]:
        """The answers of `predict` to the same texts, or pairs of texts, with the same options.

        Raises:
            InputError: when a text is empty, or there is more than the page takes.
        """
        texts: list[str] = []
        for given in inputs:
            texts += [given] if isinstance(given, str) else given
        if not all(text.strip() for text in texts):
            raise InputError("a box is empty; write a text into it")
        size = sum(len(text) for text in texts)
        if size > _MAX_CHARACTERS:
            raise InputError(
                f"{size:,} characters; the page takes {_MAX_CHARACTERS:,}, `roformer-lite predict` "
                "more"
            )
        set_seed(SEED)
        inputs = [
            self.recipe.input_of_line(given) if isinstance(given, str) else given
            for given in inputs
        ]
        answers = self.saved.answers(inputs, batch_size=_BATCH_SIZE, options=options)
        return [self.recipe.show(answer, options) for answer in answers]

    def _rank(self, query: str, others: list[str]) -> list[list[Any]]:
        """Texts by the scores of their pairs with a query, or by the cosines of embeddings, the
        highest first."""
        if not others:
            raise InputError("a box is empty; write a text into it")
        if self.takes_pairs:
            answers = self._answer([[query, text] for text in others], {})
            scores = [answer.columns["score"] for answer in answers]
        else:
            answers = self._answer([query, *others], {})
            own, *vectors = (torch.tensor(answer.columns["embedding"]) for answer in answers)
            scores = torch.cosine_similarity(own, torch.stack(vectors)).tolist()
        pairs = [[round(score, 4), text] for score, text in zip(scores, others, strict=True)]
        return sorted(pairs, key=lambda pair: -pair[0])

    def _tagged(self, line: str) -> list[tuple[str, str | None]]:
        """The tokens of a sentence, each with its tag or None. `line` is as `predict` writes it,
        `token/TAG token/TAG`."""
        space = "" if self.recipe.unit == "characters" else " "
        parts = []
        for pair in line.split(" "):
            token, _, tag = pair.rpartition("/")
            parts.append((token + space, None if tag == "O" else tag))
        return parts
