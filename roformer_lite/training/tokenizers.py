"""The tokenizer of a training: a given one, the one of a pretrained model, or a new one."""

from collections.abc import Iterable, Mapping
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainingArguments

from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ..errors import InputError
from ..options.run import Run
from ..recipes.base import Recipe
from ..saved.saved_model import naming, require_tokenizer


def make_tokenizer(
    run: Run, recipe: Recipe, args: TrainingArguments, train_rows: Dataset
) -> tuple[PreTrainedTokenizerBase, Recipe]:
    """Load the given tokenizer or the one of a pretrained model or encoder, or train one on the
    training data, and set the defaults of the task.

    A trained tokenizer is saved next to the checkpoints, where other processes and a continued
    training find it.

    Returns:
        The tokenizer, and the recipe for it.

    Raises:
        InputError: if it cannot be loaded or trained.
    """
    name = run.model.tokenizer or run.model.model_name_or_path
    if name is None:
        folder = run.checkpoints / "tokenizer"
        name = str(folder)
        with args.main_process_first(local=False):
            if args.should_save and not folder.exists():
                texts = recipe.texts(train_rows)
                trained = train_tokenizer(texts, run.model.vocab_size, recipe.new_tokenizer)
                unfinished = folder.with_suffix(".unfinished")
                trained.save_pretrained(unfinished)
                unfinished.rename(folder)
    tokenizer = require_tokenizer(name)
    with naming(f"{name}/tokenizer_config.json"):
        # Its padding and its lengths are not checked when it is loaded.
        tokenizer(["a", "b c"], padding=True, truncation=True, return_tensors="pt")
    is_own = isinstance(tokenizer, RoFormerLiteTokenizer)
    if recipe.name == "causal" and is_own:
        # A prompt has no [SEP] at its end, because another text would begin after it.
        tokenizer.add_bos_token = True
    return tokenizer, recipe.adapted_to(tokenizer)


def train_tokenizer(
    texts: Iterable[str], vocab_size: int | None, of_task: Mapping[str, Any]
) -> RoFormerLiteTokenizer:
    """Train a new tokenizer.

    Args:
        texts: The training texts.
        vocab_size: The largest vocabulary, if the user has chosen it.
        of_task: The arguments of the task.
    """
    arguments = dict(of_task)
    if vocab_size is not None:
        arguments["vocab_size"] = vocab_size
    try:
        return RoFormerLiteTokenizer.train(texts, show_progress=False, **arguments)
    # The texts may hold no character, or too many for the vocabulary.
    except ValueError as error:
        raise InputError(f"the tokenizer cannot be trained: {error}") from error
