"""A saved model on a page: its boxes, by its task, and what they are answered with."""

import threading
from collections.abc import Sequence
from typing import Any

import gradio
import numpy as np
import torch
from gradio.components import Component
from transformers import pipeline, set_seed

from ..commands.predictor import Predictor
from ..errors import InputError
from .explanations import attention_to, ngram_scores

_MOST_CHARACTERS = 200_000  # that one click asks about; `predict` has no limit
_MOST_LABELS, _MOST_NGRAMS, _MOST_TOKENS = 10, 8, 1024
_SEED = 42  # the default of `predict`
_EXAMPLES = {
    "classify": "It was better than I had expected, and far too long.",
    "tag": "Ann Lee met Bob in Rome on Monday.",
    "seq2seq": "the twenty-first of June 1987",
    "causal": "Once upon a time",
    "mlm": "It was a {mask} film.",
}
_COMPARED = "a film that I liked\nIt was a fine film.\nThe train is late.\nI enjoyed every minute."


class Trial:
    """A saved model that visitors ask. They wait for each other: model and random numbers have one state.

    Args:
        predictor: As `roformer-lite predict` loads it.
        texts: Examples; with a model that compares texts, a query and what it is compared with. Default: of ours.
    """

    def __init__(self, predictor: Predictor, texts: Sequence[str] = ()):
        self.predictor, self.saved, self.task = predictor, predictor.saved, predictor.task.name
        self.compares = self.task in ("embed", "rerank")
        self.takes_pairs = bool(self.saved.settings.get("pairs")) or self.task == "rerank"
        self.is_module = isinstance(self.saved.model, torch.nn.Module)  # and no exported graph
        self.has_ngrams = self.task == "classify" and getattr(self.saved.model, "text_scores", None) is not None
        example = _EXAMPLES.get(self.task, _COMPARED).format(mask=self.saved.tokenizer.mask_token)
        self.texts = list(texts) or example.split("\n")
        self._turn = threading.Lock()

    @property
    def examples(self) -> list[list[str]]:
        """Texts for the boxes, a list for each example."""
        if self.compares:
            return [[self.texts[0], "\n".join(self.texts[1:])]]
        if self.takes_pairs:
            return [[first, second or first] for first, _, second in (text.partition("\t") for text in self.texts)]
        return [[text] for text in self.texts]

    def boxes(self) -> list[Component]:
        """Where visitors write, with the first example in them."""
        labels = ["Text"]
        if self.compares:
            labels = ["Query", "Texts, one a line"]
        elif self.takes_pairs:
            labels = ["First text", "Second text"]
        first = zip(labels, self.examples[0], strict=True)
        return [gradio.Textbox(value, label=label, lines=3, max_lines=12) for label, value in first]

    def options(self) -> dict[str, Component]:
        """Options of `predict` that visitors may set, by their names."""
        generation = getattr(self.saved.model, "generation_config", None)
        if self.task not in ("seq2seq", "causal"):
            return {}
        limit = getattr(generation, "max_new_tokens", None) or getattr(generation, "max_length", None) or 128
        limit = 50 if self.task == "causal" else min(limit, _MOST_TOKENS)
        length = {"max_new_tokens": gradio.Slider(1, _MOST_TOKENS, limit, step=1, label="Most tokens")}
        if self.task == "causal":
            return {**length, "temperature": gradio.Slider(0, 2, 0.8, label="Temperature", info="0: no sampling")}
        beams = min(getattr(generation, "num_beams", None) or 1, 16)
        return {**length, "beams": gradio.Slider(1, 16, beams, step=1, label="Beams of the search")}

    def outputs(self) -> list[Component]:
        """Where the answer is shown."""
        if self.compares:
            return [
                gradio.Dataframe(label="Nearest first", headers=["score", "text"], wrap=True, column_widths=["6em"])
            ]
        if self.task == "classify":
            several = self.saved.model.config.problem_type == "multi_label_classification"
            return [gradio.Label(label="Labels", show_heading=not several)]
        if self.task == "tag":
            return [gradio.HighlightedText(label="Tags", show_legend=True)]
        text = gradio.Textbox(label="Answer", lines=3, buttons=["copy"])
        if self.task != "mlm" or not self.is_module:
            return [text]
        return [text, gradio.Dataframe(label="Most probable", headers=["mask", "token", "probability"])]

    def show(self, given: list[str], options: dict[str, Any]) -> list[Any]:
        """The values of `outputs` for the texts in the boxes."""
        if self.compares:
            return [self._rank(given[0], lines_of(given[1]))]
        if self.task == "classify":
            return [self._scores(given)]
        (answer,) = self.answer([given if self.takes_pairs else given[0]], options)
        if self.task == "tag":
            return [entities(answer.line, "" if self.saved.settings.get("unit") == "characters" else " ")]
        if self.task != "mlm" or not self.is_module:
            return [answer.columns["prediction"]]
        with self._turn:
            found = pipeline("fill-mask", model=self.saved.model, tokenizer=self.saved.tokenizer)(given[0])
        masks = found if isinstance(found[0], list) else [found]  # candidates of one mask come alone
        rows = [
            [number, best["token_str"].strip() or "·", round(best["score"], 4)]
            for number, candidates in enumerate(masks, 1)
            for best in candidates
        ]
        return [answer.columns["prediction"], rows]

    def answer(self, inputs: Sequence[str | list[str]], options: dict[str, Any] | None = None) -> list[Any]:
        """What `predict` answers to the same texts, or pairs of texts, with the same options.

        Raises:
            InputError: when a text is empty, or there is more than the page takes.
        """
        texts = [text for given in inputs for text in ([given] if isinstance(given, str) else given)]
        if not texts or not all(map(str.strip, texts)):
            raise InputError("a box is empty; write a text into it")
        size, options = sum(map(len, texts)), dict(options or {})
        if size > _MOST_CHARACTERS:
            raise InputError(
                f"{size:,} characters; this page takes {_MOST_CHARACTERS:,}, `roformer-lite predict` more"
            )
        if options.get("temperature") == 0:
            options = {"max_new_tokens": options["max_new_tokens"], "greedy": True}
        with self._turn:
            set_seed(_SEED)
            return self.predictor.answer(inputs, 32, options)

    def _scores(self, given: list[str]) -> dict[str, float] | float:
        config, inputs = self.saved.model.config, [given if self.takes_pairs else given[0]]
        if config.problem_type == "regression" or config.num_labels == 1:
            return self.answer(inputs)[0].columns["value"]
        count = min(config.num_labels, _MOST_LABELS)
        found = self.answer(inputs, {"top_k": count})[0].columns
        return {found[f"label_{place}"]: found[f"score_{place}"] for place in range(1, count + 1)}

    def _rank(self, query: str, others: list[str]) -> list[list[Any]]:
        """Texts by the scores of their pairs with a query, or by the cosines of embeddings, the highest first."""
        if self.takes_pairs:
            scores = [found.columns["score"] for found in self.answer([[query, text] for text in others])]
        else:
            vectors = np.array([next(iter(found.columns.values())) for found in self.answer([query, *others])])
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
            scores = (vectors[1:] @ vectors[0]).round(4).tolist()
        return sorted(map(list, zip(scores, others, strict=True)), key=lambda row: -row[0])

    def attention(self, given: list[str]) -> list[tuple[str, float]]:
        """See `attention_to`."""
        with self._turn:
            return attention_to(self.saved.model, self.saved.tokenizer, given)

    def ngrams(self, given: list[str], label: str) -> dict[str, Any]:
        """A table of the n-grams that change the logit of a label most; see `ngram_scores`."""
        model = self.saved.model
        ids = self.saved.tokenizer(*given, truncation=True, return_tensors="pt", verbose=False)["input_ids"][0]
        number = next((number for number, name in model.config.id2label.items() if name == label), 0)
        added = ngram_scores(model.text_scores, ids.to(model.device), number)
        strongest = sorted(added.items(), key=lambda pair: -abs(pair[1]))[:_MOST_NGRAMS]
        return {"headers": ["n-gram", label], "data": [[name, round(value, 3)] for name, value in strongest]}


def lines_of(text: str) -> list[str]:
    """The lines of a box that are not empty."""
    return [line for line in text.split("\n") if line.strip()]


def entities(line: str, joiner: str) -> list[tuple[str, str | None]]:
    """The parts of a sentence, each with the name of its entity, its tag, or None.

    Args:
        line: As `predict` writes it, `token/TAG token/TAG`. In IOB2, an `I-` that follows no entity of its name begins
            one, as in the metrics.
        joiner: What stands between two tokens.
    """
    parts: list[tuple[str, str | None]] = []
    for token, _, tag in (pair.rpartition("/") for pair in line.split(" ")):
        name = None if tag == "O" else tag[2:] if tag[:2] in ("B-", "I-") else tag
        if parts and parts[-1][1] == name and (tag == "O" or tag.startswith("I-")):
            parts[-1] = (parts[-1][0] + token + joiner, name)
        else:
            parts.append((token + joiner, name))
    return parts
