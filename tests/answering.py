"""The answers of a saved model, as `predict` writes them."""

from collections.abc import Sequence
from typing import Any

import pytest

from roformer_lite.answers import SavedModel
from roformer_lite.recipes.base import Shown


def shown_answers(
    saved: SavedModel, lines: Sequence[str | list[str]], batch_size: int = 8, **options: Any
) -> list[Shown]:
    """The shown answer to each input: a line of text, a pair of texts or a list of words."""
    recipe = saved.recipe
    inputs = []
    for line in lines:
        if isinstance(line, str) and line.strip():
            inputs.append(recipe.input_of_line(line))
        else:
            inputs.append(line)
    nothing = Shown(line="", columns=dict.fromkeys(recipe.answer_columns(options)))
    answers = saved.answers(inputs, batch_size=batch_size, options=options)
    return [nothing if answer is None else recipe.show(answer, options) for answer in answers]


def assert_same_answers(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """The columns of two tables are equal, but for the rounding of numbers."""
    for own, their in zip(ours, theirs, strict=True):
        assert own.keys() == their.keys()
        for name, value in own.items():
            if isinstance(value, float) or name.endswith("embedding"):
                value = pytest.approx(value, abs=2e-4)
            assert their[name] == value
