"""The page of one model: a text, its answer, and the reasons for it."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio
import torch
from gradio.components import Component
from transformers import pipeline, set_seed
from transformers.utils.logging import disable_progress_bar

from ..errors import InputError
from ..output import RESULTS_FILE
from ..predict.answers import Answer
from ..predict.predictor import Predictor
from ..saved_model import read_optional_object
from .explanations import attention_to, ngram_scores

# On a narrow screen the answer stands above the boxes, where a visitor sees it without scrolling.
_CSS = "@media (max-width: 700px) { .answer { order: -1; } }"
_MOST_CHARACTERS = 200_000  # that one click asks about; `predict` has no limit
_SHOWN_LABELS, _SHOWN_SCORES, _SHOWN_NGRAMS = 30, 10, 8
_EXAMPLES = {
    "classify": "It was better than I had expected, and far too long.",
    "tag": "Ann Lee met Bob in Rome on Monday.",
    "seq2seq": "the twenty-first of June 1987",
    "causal": "Once upon a time",
    "mlm": "It was a {mask} film.",
}
_COMPARED = "a film that I liked\nIt was a fine film.\nThe train is late.\nI enjoyed every minute."


def open_page(
    name: str,
    texts: Sequence[str] = (),
    title: str | None = None,
    engine: str = "torch",
    **options: Any,
) -> gradio.Blocks:
    """Answer visitors until the process is ended. No link is shared, and nothing is reported to
    Gradio's makers.

    Args:
        name: Directory of the model, or its name on the Hub.
        texts: As for `Page`.
        title: Stands above the page. Default: the last part of `name`.
        engine: As for `Predictor.load`.
        options: `device`, as for `Predictor.load`, and others of Gradio's `launch`.

    Raises:
        InputError: when the model cannot be loaded, or the page cannot be opened at this address.
    """
    disable_progress_bar()  # of loading the weights
    page = Page(Predictor.load(name, options.pop("device", None), engine=engine), texts)
    description = page.describe(read_optional_object(name, RESULTS_FILE))
    blocks = page.build(title or Path(name).resolve().name, description)
    try:
        blocks.launch(
            show_error=True,  # visitors read what is wrong with their text
            max_file_size=1,  # byte: the page needs no files
            css=_CSS,
            theme=gradio.themes.Default(),  # whose fonts come with Gradio
            share=False,
            ssr_mode=False,  # a second server, of Node
            footer_links=["api"],
            run_history=False,  # else the browser keeps what its visitor wrote
            quiet=True,
            prevent_thread_lock=True,
            **options,
        )
    except OSError as error:
        raise InputError(
            f"no page can be opened there: {error}; choose another --port or --host"
        ) from error
    print(f"{blocks.title}: {blocks.local_url}", flush=True)
    return blocks


class Page:
    """A saved model that visitors ask. They wait for each other: model and random numbers have one
    state.

    Args:
        predictor: As `roformer-lite predict` loads it.
        texts: Examples; with a model that compares texts, a query and what it is compared with.
            Default: of ours.
    """

    def __init__(self, predictor: Predictor, texts: Sequence[str] = ()):
        self.predictor, self.saved, self.task = predictor, predictor.saved, predictor.task.name
        self.compares, self.turn = self.task in ("embed", "rerank"), threading.Lock()
        self.takes_pairs = self.task == "rerank" or bool(self.saved.settings.get("pairs"))
        is_module = isinstance(self.saved.model, torch.nn.Module)  # and no exported graph
        self.fills_masks = is_module and self.task == "mlm"
        self.has_attention = is_module and self.saved.tokenizer.is_fast and not self.compares
        scores = getattr(self.saved.model, "text_scores", None) if self.task == "classify" else None
        self.text_scores = scores if self.saved.model.config.num_labels > 1 else None
        default = _EXAMPLES.get(self.task, _COMPARED).format(mask=self.saved.tokenizer.mask_token)
        texts, self.names = list(texts) or default.split("\n"), ["Text"]
        self.examples = [[text] for text in texts]
        if self.compares:
            self.names, self.examples = (
                ["Query", "Texts, one a line"],
                [[texts[0], "\n".join(texts[1:])]],
            )
        elif self.takes_pairs:
            self.names = ["First text", "Second text"]
            self.examples = [(text.split("\t") * 2)[:2] for text in texts]

    def build(self, title: str, description: str = "") -> gradio.Blocks:
        """The page with the endpoint `/answer`; `description` is Markdown."""
        with gradio.Blocks(title=title, analytics_enabled=False) as blocks:
            gradio.Markdown(f"# {title}\n\n{description}")
            with gradio.Row():
                with gradio.Column():
                    pairs = zip(self.examples[0], self.names, strict=True)
                    inputs = [
                        gradio.Textbox(text, label=name, lines=3, max_lines=12)
                        for text, name in pairs
                    ]
                    events = [box.submit for box in inputs]
                    ask = gradio.Button("Answer", variant="primary")
                    gradio.Examples(
                        self.examples, inputs, label="Examples", visible=len(self.examples) > 1
                    )
                with gradio.Column(elem_classes="answer"):
                    outputs = [self._answer_component()]
            with gradio.Row():
                if self.has_attention:
                    label = "Where the model looked: attention of the last layer"
                    outputs.append(gradio.HighlightedText(label=label, min_width=320))
                if self.text_scores is not None:
                    label = "Strongest n-grams, by what they add to the label"
                    outputs.append(gradio.Dataframe(label=label, min_width=320))
            if self.task in ("seq2seq", "causal"):
                inputs.append(
                    gradio.Number(label="Most new tokens", precision=0, minimum=1, maximum=1024)
                )
            if self.task == "causal":
                inputs.append(
                    gradio.Slider(0, 2, 0.8, label="Temperature; 0: always the most probable token")
                )
            gradio.on([ask.click, *events], self.show, inputs, outputs, api_name="answer")
            blocks.load(self.show, inputs, outputs, api_visibility="private")
        return blocks

    def _answer_component(self) -> Component:
        if self.compares:
            return gradio.Dataframe(label="Nearest first", headers=["score", "text"], wrap=True)
        if self.task == "classify":
            several = self.saved.model.config.problem_type == "multi_label_classification"
            return gradio.Label(label="Answer", show_heading=not several)
        if self.task == "tag":
            return gradio.HighlightedText(label="Answer", show_legend=True)
        if self.fills_masks:
            return gradio.Dataframe(label="Most probable", headers=["mask", "token", "probability"])
        return gradio.Textbox(label="Answer", lines=3, buttons=["copy"])

    def describe(self, results: dict[str, Any]) -> str:
        """The labels of the model and the result of its test, or of its validation, as far as
        `results` has it."""
        lines, config, metric = [], self.saved.model.config, results.get("main_metric")
        if self.task in ("classify", "tag") and config.num_labels > 1:
            names = [
                f"`{name}`"
                for name in dict.fromkeys(map(self._entity, config.id2label.values()))
                if name
            ]
            more = [f"… ({len(names)} in all)"] if len(names) > _SHOWN_LABELS else []
            lines.append("**Labels:** " + ", ".join(names[:_SHOWN_LABELS] + more))
        for split in ("test", "validation"):
            if metric in results.get("metrics", {}).get(split, {}):
                title, value = (
                    metric.replace("_", " ").capitalize(),
                    results["metrics"][split][metric],
                )
                size = (
                    f", {results['rows'][split]:,} examples"
                    if split in results.get("rows", {})
                    else ""
                )
                lines.append(f"**{title} on the {split} data:** {value:.3f}{size}")
                break
        return "\n\n".join(lines)

    def show(self, *values: Any) -> Any:
        """The answer to the texts in the boxes, and its reasons. After the texts, models that
        generate take how many new tokens there may be, and the temperature."""
        given, options = [text or "" for text in values[: len(self.names)]], {}
        for name, value in zip(
            ("max_new_tokens", "temperature"), values[len(self.names) :], strict=False
        ):
            options |= {"greedy": True} if value == 0 else {} if value is None else {name: value}
        with self.turn:
            if self.compares:
                return self._rank(given[0], [line for line in given[1].split("\n") if line.strip()])
            shown = [self._shown(given, options)]
            if self.has_attention:
                shown.append(attention_to(self.saved.model, self.saved.tokenizer, given))
            if self.text_scores is not None:
                ids = self.saved.tokenizer(*given, truncation=True, return_tensors="pt").to(
                    self.saved.model.device
                )
                label = max(shown[0], key=shown[0].get)
                number = next(
                    n for n, name in self.saved.model.config.id2label.items() if name == label
                )
                added = ngram_scores(self.text_scores, ids["input_ids"][0], number)
                strongest = sorted(added.items(), key=lambda pair: -abs(pair[1]))[:_SHOWN_NGRAMS]
                data = [[name, round(value, 3)] for name, value in strongest]
                shown.append({"headers": ["n-gram", label], "data": data})
        return shown if len(shown) > 1 else shown[0]

    def _shown(self, given: list[str], options: dict[str, Any]) -> Any:
        """The value of the component of the answer."""
        model, tokenizer = self.saved.model, self.saved.tokenizer
        if self.task in ("classify", "seq2seq"):  # which truncate a text
            if len(tokenizer(*given, verbose=False)["input_ids"]) > tokenizer.model_max_length:
                gradio.Warning(
                    f"The model reads the first {tokenizer.model_max_length} tokens of this text."
                )
        if self.task == "classify" and (labels := min(model.config.num_labels, _SHOWN_SCORES)) > 1:
            options = {"top_k": labels}
        (answer,) = self._answer(given if self.takes_pairs else given[0], **options)
        if "top_k" in options:
            columns, threshold = answer.columns, self.saved.settings.get("threshold", 0)
            if columns["score_1"] < threshold:
                gradio.Warning(
                    f"`predict` gives no label here, as it asks for a score of {threshold:.4f}."
                )
            return {columns[f"label_{n}"]: columns[f"score_{n}"] for n in range(1, labels + 1)}
        if self.fills_masks:
            found = pipeline("fill-mask", model=model, tokenizer=tokenizer)(given[0])
            # candidates of one mask come alone
            masks = found if isinstance(found[0], list) else [found]
            return [
                [n, one["token_str"], round(one["score"], 4)]
                for n, mask in enumerate(masks, 1)
                for one in mask
            ]
        return (
            self.entities(answer.line)
            if self.task == "tag"
            else next(iter(answer.columns.values()))
        )

    def _answer(self, *inputs: str | list[str], **options: Any) -> list[Answer]:
        """What `predict` answers to the same texts, or pairs of texts, with the same options.

        Raises:
            InputError: when a text is empty, or there is more than the page takes.
        """
        texts = [
            text for given in inputs for text in ([given] if isinstance(given, str) else given)
        ]
        if not all(map(str.strip, texts)):
            raise InputError("a box is empty; write a text into it")
        if (size := sum(map(len, texts))) > _MOST_CHARACTERS:
            raise InputError(
                f"{size:,} characters; the page takes {_MOST_CHARACTERS:,}, `roformer-lite predict` more"
            )
        set_seed(42)  # the default of `predict`
        return self.predictor.answer(inputs, 32, options)

    def _rank(self, query: str, others: list[str]) -> list[list[Any]]:
        """Texts by the scores of their pairs with a query, or by the cosines of embeddings, the
        highest first."""
        if not others:
            raise InputError("a box is empty; write a text into it")
        if self.takes_pairs:
            scores = [
                found.columns["score"]
                for found in self._answer(*([query, text] for text in others))
            ]
        else:
            vectors = [found.columns["embedding"] for found in self._answer(query, *others)]
            scores = torch.cosine_similarity(
                torch.tensor(vectors[:1]), torch.tensor(vectors[1:])
            ).tolist()
        pairs = [[round(score, 4), text] for score, text in zip(scores, others, strict=True)]
        return sorted(pairs, key=lambda pair: -pair[0])

    def _entity(self, tag: str) -> str | None:
        """What a label is called; None for the tag of tokens outside of all entities."""
        if self.task != "tag":
            return tag
        return None if tag == "O" else tag[2:] if tag[:2] in ("B-", "I-") else tag

    def entities(self, line: str) -> list[tuple[str, str | None]]:
        """The parts of a sentence, each with the name of its entity or None. In IOB2, an `I-` that
        follows no entity of its name begins one, as in the metrics. `line` is as `predict` writes
        it, `token/TAG token/TAG`."""
        joiner = "" if self.saved.settings.get("unit") == "characters" else " "
        parts: list[tuple[str, str | None]] = []
        for token, _, tag in (pair.rpartition("/") for pair in line.split(" ")):
            name = self._entity(tag)
            if parts and parts[-1][1] == name and (tag == "O" or tag.startswith("I-")):
                parts[-1] = (parts[-1][0] + token + joiner, name)
            else:
                parts.append((token + joiner, name))
        return parts
