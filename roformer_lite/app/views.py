"""How each task is asked on the page, and how its answer is shown."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gradio
from gradio.components import Component

from ..training.tasks.answers import Input
from ..training.tasks.classify import MULTI, REGRESSION, problem_type_of
from ..training.tasks.tag import are_entities
from .trial import Trial

_MOST_LABELS = 10  # shown with their scores

Span = tuple[str, str | None]


class View(ABC):
    """The boxes of one task and what is shown below them.

    Args:
        trial: The model that is asked.
        texts: What stands in the box of texts to compare, if the task has one.
    """

    option_names: tuple[str, ...] = ()  # of `predict`, that visitors may set

    def __init__(self, trial: Trial, texts: str = ""):
        self.trial, self.texts = trial, texts

    def boxes(self) -> list[Component]:
        """Where visitors write."""
        if self.trial.takes_pairs:
            return [gradio.Textbox(label=f"{place} text", lines=2) for place in ("First", "Second")]
        return [gradio.Textbox(label="Text", lines=3, placeholder=self.hint, autofocus=True)]

    @property
    def hint(self) -> str:
        """What stands in an empty box."""
        return ""

    def input_of(self, *values: str) -> Input:
        """What the model gets of the boxes."""
        return values[0] if len(values) == 1 else list(values)

    @abstractmethod
    def outputs(self) -> list[Component]:
        """Where the answer is shown."""

    @abstractmethod
    def show(self, values: Sequence[str], options: dict[str, Any]) -> list[Any]:
        """The values of `outputs` for filled boxes."""


class ClassifyView(View):
    """Labels with their scores, or a number."""

    def __init__(self, trial: Trial, texts: str = ""):
        super().__init__(trial, texts)
        config = trial.saved.model.config
        self.problem_type = problem_type_of(config)
        self.labels = min(config.num_labels, _MOST_LABELS)
        if self.problem_type == MULTI:
            self.option_names = ("threshold",)

    def outputs(self) -> list[Component]:
        if self.problem_type == REGRESSION:
            return [gradio.Number(label="Value", interactive=False)]
        scores = gradio.Label(label="Scores", num_top_classes=self.labels, show_heading=self.problem_type != MULTI)
        return [gradio.Textbox(label="Labels"), scores] if self.problem_type == MULTI else [scores]

    def show(self, values: Sequence[str], options: dict[str, Any]) -> list[Any]:
        given = [self.input_of(*values)]
        if self.problem_type == REGRESSION:
            return [self.trial.answer(given)[0].columns["value"]]
        columns = self.trial.answer(given, {"top_k": self.labels})[0].columns
        scores = {columns[f"label_{place}"]: columns[f"score_{place}"] for place in range(1, self.labels + 1)}
        return [self.trial.answer(given, options)[0].line, scores] if self.problem_type == MULTI else [scores]


class TagView(View):
    """The text with its entities marked, or every token with its tag."""

    def __init__(self, trial: Trial, texts: str = ""):
        super().__init__(trial, texts)
        self.has_entities = are_entities(trial.saved.model.config.id2label.values())

    def outputs(self) -> list[Component]:
        return [gradio.HighlightedText(label="Tags", combine_adjacent=False, show_legend=True)]

    def show(self, values: Sequence[str], options: dict[str, Any]) -> list[Any]:
        saved = self.trial.saved
        (answer,) = self.trial.answer(values)
        tokens = self.trial.task.tokens_of(saved, values[0])
        tags = answer.columns["tags"]
        joiner = "" if saved.settings.get("unit") == "characters" else " "
        parts = entity_parts(tokens, tags, joiner) if self.has_entities else list(zip(tokens, tags, strict=True))
        return [with_joiners(parts, joiner)]


class TextView(View):
    """Text out: a translation, a continuation."""

    def __init__(self, trial: Trial, texts: str = ""):
        super().__init__(trial, texts)
        self.option_names = trial.task.prediction_options

    def outputs(self) -> list[Component]:
        return [gradio.Textbox(label="Answer", lines=3, buttons=["copy"])]

    def show(self, values: Sequence[str], options: dict[str, Any]) -> list[Any]:
        return [self.trial.answer(values, options)[0].columns["prediction"]]


class FillView(View):
    """The text with its masks filled in, and what else may stand there."""

    @property
    def hint(self) -> str:
        return f"A text with {self.trial.saved.tokenizer.mask_token} where a word shall be found"

    def outputs(self) -> list[Component]:
        headers, kinds = ["mask", "token", "probability"], ["number", "str", "number"]
        return [
            gradio.Textbox(label="Filled in", lines=2),
            gradio.Dataframe(label="Most probable", headers=headers, datatype=kinds, interactive=False),
        ]

    def show(self, values: Sequence[str], options: dict[str, Any]) -> list[Any]:
        candidates = self.trial.candidates(values[0])
        rows = [[found.mask, found.token, round(found.probability, 4)] for found in candidates]
        return [self.trial.answer(values)[0].columns["prediction"], rows]


class RankView(View):
    """Texts in the order of their scores with a query."""

    def boxes(self) -> list[Component]:
        return [
            gradio.Textbox(label="Query", lines=2, autofocus=True),
            gradio.Textbox(label="Texts, one a line", lines=8, max_lines=8, value=self.texts),
        ]

    def input_of(self, *values: str) -> Input:
        if not self.trial.takes_pairs:
            return values[0]
        return [values[0], next(iter(lines_of(values[1])), "")]

    def outputs(self) -> list[Component]:
        shape = {"headers": ["score", "text"], "datatype": ["number", "str"], "column_widths": ["20%", "80%"]}
        return [gradio.Dataframe(label="Nearest", wrap=True, interactive=False, **shape)]

    def show(self, values: Sequence[str], options: dict[str, Any]) -> list[Any]:
        return [[[score, text] for text, score in self.trial.rank(values[0], lines_of(values[1]))]]


VIEWS: dict[str, type[View]] = {
    "classify": ClassifyView,
    "tag": TagView,
    "seq2seq": TextView,
    "causal": TextView,
    "mlm": FillView,
    "embed": RankView,
    "rerank": RankView,
}
COMPARING = tuple(task for task, view in VIEWS.items() if view is RankView)  # tasks that compare texts with a query


def lines_of(text: str) -> list[str]:
    """The lines of a box that are not empty."""
    return [line for line in text.split("\n") if line.strip()]


def entity_parts(tokens: Sequence[str], tags: Sequence[str], joiner: str) -> list[Span]:
    """A sentence in entities with their names, and what lies between them with None.

    Args:
        tokens: The words or characters of the sentence.
        tags: The IOB2 tag of each. An `I-` that follows another entity, or none, begins one, as in the measures.
        joiner: What stands between two tokens.
    """
    parts: list[tuple[list[str], str | None]] = []
    for token, tag in zip(tokens, tags, strict=True):
        name = tag[2:] or None
        if parts and parts[-1][1] == name and not tag.startswith("B-"):
            parts[-1][0].append(token)
        else:
            parts.append(([token], name))
    return [(joiner.join(words), name) for words, name in parts]


def with_joiners(parts: Sequence[Span], joiner: str) -> list[Span]:
    """The parts of a sentence, with what stands between two of them as a part without a name."""
    between = [(joiner, None)] if joiner else []
    return [span for number, part in enumerate(parts) for span in (*(between if number else ()), part)]
