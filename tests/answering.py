"""The answers of a saved model, as `predict` writes them."""

from collections.abc import Sequence
from typing import Any

from roformer_lite.answers import SavedModel
from roformer_lite.recipes.base import Input, Shown


def shown_answers(
    saved: SavedModel, inputs: Sequence[Input], batch_size: int = 8, **options: Any
) -> list[Shown]:
    """An answer to each input; none of them is empty."""
    answers = saved.answers(inputs, batch_size=batch_size, options=options)
    return [saved.recipe.show(answer, options) for answer in answers]
