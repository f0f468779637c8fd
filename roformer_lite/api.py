"""The commands `train`, `evaluate` and `predict` as functions, which `roformer_lite` exports.

Their keyword arguments have the names of the options, and their values are checked like those of
the command line. Nothing is imported before a function is called, because the command line imports
this module, too.
"""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from .errors import InputError


def train(task: str | PathLike[str], **options: Any) -> dict[str, Any]:
    """Train a model, as `roformer-lite train TASK` does.

    To resume an interrupted training, call this function again with the same arguments.

    Args:
        task: `classify`, `tag`, `seq2seq`, `mlm`, `causal`, `embed` or `rerank`, or the path of a
            `run.yaml`.
        **options: The options that `roformer-lite train TASK --help` lists, by their names.
            None stands for the default.

    Returns:
        The contents of `results.json`, above all the `metrics` of the saved model by split
        (`validation`, `test`) and name, the `baselines` and the `verdict`. It is empty in a process
        of a distributed training that does not save the model.

    Raises:
        InputError: in the cases in which the command reports an error.
    """
    from .options.run import parse_run

    run = parse_run(str(task), [], options)

    from .commands.train import train_run

    return train_run(run) or {}


def evaluate(model: str | PathLike[str], **options: Any) -> dict[str, Any]:
    """Evaluate a saved model on labelled data, as `roformer-lite evaluate DIR` does.

    Args:
        model: The directory of the model, or its name on the Hub.
        **options: The options that `roformer-lite evaluate --help` lists, by their names, above all
            `test_file`.

    Returns:
        The `metrics` of the split `test` by name, the `predictions`, which are a dictionary for
        each row with its `origin`, its input, its true value and its prediction, and the `report`
        that the command prints, with further entries as in `results.json`.

    Raises:
        InputError: in the cases in which the command reports an error.
    """
    from .commands.evaluate_options import parse

    given = parse([str(model)], options)

    from .commands.evaluate import evaluate_model

    return evaluate_model(*given)


def predict(
    model: str | PathLike[str], inputs: Iterable[Any] | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The predictions of a saved model, as `roformer-lite predict DIR` writes them into a table.

    Each call opens the model once, so pass all texts in one call.

    Args:
        model: The directory of the model, or its name on the Hub.
        inputs: A list of texts; of pairs of texts for a model that reads pairs; or of rows, which
            are dictionaries of columns. Default: the rows of the option `input_file`.
        **options: The options that `roformer-lite predict --help` lists, by their names, except
            `output_file`.

    Returns:
        A dictionary for each input, with its own columns followed by those of its prediction, for
        example `{"text": …, "label": …, "score": …}`.

    Raises:
        InputError: in the cases in which the command reports an error.
    """
    from .commands.predict_options import parse

    if options.get("output_file") is not None:
        raise InputError("output_file is for the command; `predict` returns the table")
    if (inputs is None) == (options.get("input_file") is None):
        raise InputError("pass either a list of texts or rows, or input_file")
    # The elements of these would be characters or names of columns.
    if isinstance(inputs, str | Mapping) or hasattr(inputs, "columns"):
        raise InputError(
            f"the inputs are a {type(inputs).__name__}; pass a list of texts or of rows (for a "
            'DataFrame, `frame.to_dict("records")`), or name a file with input_file'
        )
    given = parse([str(model)], options, has_rows=inputs is not None)

    from .commands.predict import predictions

    return predictions(*given, inputs=() if inputs is None else inputs)
