"""A saved model on a page: its boxes, by its task, and what they are answered with."""

import threading
from collections.abc import Sequence
from typing import Any

import gradio
import numpy as np
import torch
from gradio.components import Component
from transformers import pipeline, set_seed

from ..errors import InputError
from ..predict.predictor import Predictor
from .explanations import attention_to, ngram_scores

_MOST_CHARACTERS = 200_000  # that one click asks about; `predict` has no limit
_MOST_LABELS, _MOST_NGRAMS, _MOST_TOKENS = 10, 8, 1024
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
        self.takes_pairs = self.task == "rerank" or bool(self.saved.settings.get("pairs"))
        is_module = isinstance(self.saved.model, torch.nn.Module)  # and no exported graph
        self.fills_masks = is_module and self.task == "mlm"
        self.has_attention = is_module and self.saved.tokenizer.is_fast and not self.compares
        self.has_ngrams = self.task == "classify" and getattr(self.saved.model, "text_scores", None) is not None
        default = _EXAMPLES.get(self.task, _COMPARED).format(mask=self.saved.tokenizer.mask_token)
        texts = list(texts) or default.split("\n")
        self.examples = [[text] for text in texts]  # values of the boxes
        if self.compares:
            self.examples = [[texts[0], "\n".join(texts[1:])]]
        elif self.takes_pairs:
            self.examples = [(text.split("\t") * 2)[:2] for text in texts]
        self._turn = threading.Lock()

    def boxes(self) -> list[Component]:
        """Where visitors write, with the first example in them."""
        labels = ["Query", "Texts, one a line"] if self.compares else ["First text", "Second text"]
        named = zip(["Text"] if len(self.examples[0]) == 1 else labels, self.examples[0], strict=True)
        return [gradio.Textbox(text, label=label, lines=3, max_lines=12) for label, text in named]

    def options(self) -> dict[str, Component]:
        """Options of `predict` that visitors may set, by their names."""
        if self.task not in ("seq2seq", "causal"):
            return {}
        generation = getattr(self.saved.model, "generation_config", None)
        saved = getattr(generation, "max_new_tokens", None) or getattr(generation, "max_length", None) or 128
        length = 50 if self.task == "causal" else min(saved, _MOST_TOKENS)
        options = {"max_new_tokens": gradio.Slider(1, _MOST_TOKENS, length, step=1, label="Most tokens")}
        if self.task == "causal":
            options["temperature"] = gradio.Slider(0, 2, 0.8, label="Temperature", info="0: no sampling")
        return options

    def outputs(self) -> list[Component]:
        """Where the answer is shown, and after it the reasons: attention and n-grams, where the model has them."""
        if self.compares:
            return [
                gradio.Dataframe(
                    label="Nearest first", headers=["score", "text"], column_widths=["25%", "75%"], wrap=True
                )
            ]
        if self.task == "classify":
            several = self.saved.model.config.problem_type == "multi_label_classification"
            shown = gradio.Label(label="Answer", show_heading=not several)
        elif self.task == "tag":
            shown = gradio.HighlightedText(label="Answer", show_legend=True)
        elif self.fills_masks:
            shown = gradio.Dataframe(label="Most probable", headers=["mask", "token", "probability"])
        else:
            shown = gradio.Textbox(label="Answer", lines=3, buttons=["copy"])
        attention = gradio.HighlightedText(label="Where the model looked: attention of the last layer", min_width=320)
        ngrams = gradio.Dataframe(label="Strongest n-grams, by what they add to the label", min_width=320)
        return [shown, *[attention] * self.has_attention, *[ngrams] * self.has_ngrams]

    def show(self, given: list[str], options: dict[str, Any]) -> list[Any]:
        """The values of `outputs` for the texts in the boxes."""
        if self.compares:
            return [self._rank(given[0], lines_of(given[1]))]
        model, tokenizer, config = self.saved.model, self.saved.tokenizer, self.saved.model.config
        labels = min(config.num_labels, _MOST_LABELS) if self.task == "classify" else 1
        options = {"top_k": labels} if labels > 1 else options
        (answer,) = self.answer([given if self.takes_pairs else given[0]], options)
        if self.task in ("classify", "seq2seq"):  # which truncate a text
            if len(tokenizer(*given, verbose=False)["input_ids"]) > tokenizer.model_max_length:
                gradio.Warning(f"The model reads the first {tokenizer.model_max_length} tokens of this text.")
        values: list[Any] = [next(iter(answer.columns.values()))]
        if labels > 1:
            columns = answer.columns
            values = [{columns[f"label_{n}"]: columns[f"score_{n}"] for n in range(1, labels + 1)}]
        elif self.task == "tag":
            values = [entities(answer.line, "" if self.saved.settings.get("unit") == "characters" else " ")]
        with self._turn:
            if self.fills_masks:
                found = pipeline("fill-mask", model=model, tokenizer=tokenizer)(given[0])
                masks = found if isinstance(found[0], list) else [found]  # candidates of one mask come alone
                values = [
                    [[n, one["token_str"], round(one["score"], 4)] for n, mask in enumerate(masks, 1) for one in mask]
                ]
            if self.has_attention:
                values.append(attention_to(model, tokenizer, given))
            if self.has_ngrams:
                label = max(values[0], key=values[0].get) if labels > 1 else config.id2label[0]
                number = next(number for number, name in config.id2label.items() if name == label)
                ids = tokenizer(*given, truncation=True, return_tensors="pt").to(model.device)["input_ids"][0]
                added = ngram_scores(model.text_scores, ids, number)
                strongest = sorted(added.items(), key=lambda pair: -abs(pair[1]))[:_MOST_NGRAMS]
                data = [[name, round(value, 3)] for name, value in strongest]
                values.append({"headers": ["n-gram", label], "data": data})
        return values

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
            set_seed(42)  # the default of `predict`
            return self.predictor.answer(inputs, 32, options)

    def _rank(self, query: str, others: list[str]) -> list[list[Any]]:
        """Texts by the scores of their pairs with a query, or by the cosines of embeddings, the highest first."""
        if self.takes_pairs:
            scores = [found.columns["score"] for found in self.answer([[query, text] for text in others])]
        else:
            vectors = np.array([found.columns["embedding"] for found in self.answer([query, *others])])
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
            scores = (vectors[1:] @ vectors[0]).round(4).tolist()
        return sorted(map(list, zip(scores, others, strict=True)), key=lambda row: -row[0])


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
