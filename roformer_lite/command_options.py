"""The options of every command, and the parsers of the command lines. The options of a training are
in options.py and task_options.py.

The results of `parse_export`, for example, are passed to `main` in `commands/export.py`.

Mistakes in a command line are found here, before the module of the command in `commands/` is
imported. Nothing here imports torch, so that `--help` and error messages appear quickly.
"""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_type_hints

from .command_parser import CommandParser, help_texts
from .data.data_files import TABLE_FORMATS, file_format
from .errors import (
    MAX_BATCH_SIZE,
    MAX_BEAMS,
    TRAINING_PACKAGES,
    InputError,
    check_directory,
    check_file,
    check_model_name,
    check_number,
    require_packages,
)
from .export.formats import (
    GRAPH_FORMATS,
    Engine,
    Format,
    check_engine,
    check_libraries,
    check_quantization,
)
from .options import MAX_SEED, DatasetArguments, TableArguments
from .output import (
    RESULTS_FILE,
    check_answers_file,
    check_output_dir,
    check_output_file,
    check_place,
    new_directory,
)
from .run import Run, parse_run
from .tables import check_table_name
from .task_options import TASK_ARGUMENTS

# The seed of `predict`.
SEED = 42
# Dividing logits by a smaller number would overflow in float16.
MIN_TEMPERATURE = 1e-3
_SAMPLING = ("temperature", "top_p", "top_k", "seed")
REPORT_FILE = "report.txt"
# A finished evaluation consists of these files.
EVALUATION_FILES = (REPORT_FILE, RESULTS_FILE)
# This stands for the family in config.json, or for one that supports all features of a model.
AUTO = "auto"
# The option --from.
_SOURCE: dict[str, Any] = {
    "dest": "source",
    "metavar": "SYSTEM",
    "help": (
        f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json names), "
        "or its name. An unknown name is answered with a list of all systems."
    ),
}
# The help text of an argument that is a saved model.
_MODEL = "the model's directory, or its name on the Hub"


@dataclass
class DeviceArguments:
    """The device of a model.

    Args:
        device: cpu, cuda, cuda:1 … Default: cuda if there is one.
    """

    device: str | None = None


@dataclass
class EngineArguments(DeviceArguments):
    """The device of a model, and the library that runs it.

    Args:
        engine: The library that runs the model. onnx needs the output of `roformer-lite export`.
    """

    engine: Engine = "torch"


def parse_train(argv: Sequence[str]) -> tuple[Run]:
    """The run that the command line of `roformer-lite train` describes."""
    width = max(map(len, TASK_ARGUMENTS))
    tasks = "\n".join(
        f"  {name:{width}}  {arguments.summary}" for name, arguments in TASK_ARGUMENTS.items()
    )
    parser = argparse.ArgumentParser(
        prog="roformer-lite train",
        description="Train a model on your own data.",
        usage="roformer-lite train TASK|run.yaml [--OPTION VALUE ...]",
        epilog=(
            f"tasks:\n{tasks}\n\n`roformer-lite train TASK --help` lists the options. The file "
            "run.yaml, which every\ntraining writes with its model, repeats that training; options "
            "after it override it."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "task", metavar="TASK|run.yaml", help="a task, or the description of a training"
    )
    task = parser.parse_args(argv[:1]).task
    run = parse_run(task, argv[1:])
    require_packages("training", TRAINING_PACKAGES | run.data.packages)
    return (run,)


@dataclass
class EvaluateArguments(DatasetArguments, DeviceArguments):
    """Options of `roformer-lite evaluate`, except the model directory and `measuring_arguments`.

    Args:
        test_file: Labelled data: .tsv, .csv, .jsonl or .txt, also .gz; several are read one after
            another.
        test_split: Split of --dataset_name.
        output_dir: Directory for results, report, picture and the table of all predictions.
            Default: none.
        overwrite_output_dir: Replace an earlier evaluation there.
        table_format: Format of the table of predictions.
        examples: How many of the worst answers to print.
        batch_size: Rows in a batch. Default: the same as in the evaluation after training,
            otherwise 64.
    """

    test_file: list[str] | None = None
    test_split: str = "test"
    output_dir: str | None = None
    overwrite_output_dir: bool = False
    table_format: Literal["csv", "jsonl"] = "csv"
    examples: int = 5
    batch_size: int | None = None

    def __post_init__(self):
        if (self.test_file is None) == (self.dataset_name is None):
            raise InputError("give either --test_file or --dataset_name")
        if self.dataset_name is None:
            self.refuse_hub_options("--test_file", "test_split")
        for path in self.test_file or ():
            check_file("test_file", path)
        check_number("examples", self.examples, minimum=0)
        check_number("batch_size", self.batch_size, minimum=1, maximum=MAX_BATCH_SIZE)
        if self.output_dir is not None:
            self.output_dir = check_place("output_dir", self.output_dir)
            check_output_dir(
                Path(self.output_dir), self.overwrite_output_dir, EVALUATION_FILES, "an evaluation"
            )


def measuring_arguments() -> type:
    """A dataclass of the options of `train` that determine how labelled data are read and
    evaluated, for all tasks together. None stands for the value in the model's training."""
    tasks: dict[str, list[str]] = {}
    for task, arguments in TASK_ARGUMENTS.items():
        for name in arguments.measuring_options:
            tasks.setdefault(name, []).append(task)
    options = []
    for name, of_tasks in tasks.items():
        arguments = TASK_ARGUMENTS[of_tasks[0]]
        help = f"{', '.join(of_tasks)}: {help_texts(arguments).get(name)}"
        hint = get_type_hints(arguments)[name] | None
        options.append((name, hint, field(default=None, metadata={"help": help})))
    group = "reading and measuring (defaults are those of the model's training)"
    return make_dataclass("MeasuringArguments", options, namespace={"_argument_group_name": group})


def parse_evaluate(
    argv: Sequence[str],
) -> tuple[EvaluateArguments, dict[str, Any], str, Sequence[str]]:
    """The options of `roformer-lite evaluate`.

    Returns:
        Its own options, the given options about reading and evaluating data, the directory of the
        model, and the command line, which the results show.
    """
    parser = CommandParser(
        "evaluate",
        "Evaluate a trained model on labelled data: the metrics of its model card, scores by "
        "label, and the worst predictions.",
        [EvaluateArguments, measuring_arguments()],
        DIR=_MODEL,
    )
    options, measuring, paths = parser.parse(argv)
    given = {name: value for name, value in vars(measuring).items() if value is not None}
    require_packages("evaluating", TRAINING_PACKAGES)
    check_model_name(paths.dir)
    return options, given, paths.dir, argv


@dataclass
class ReadingArguments(TableArguments, EngineArguments):
    """The input and output of `roformer-lite predict`, in addition to the model directory.

    Args:
        input_file: UTF-8 text, also .gz. Default: standard input.
        output_file: File for the predictions. A table is written to a .csv, .tsv or .jsonl file,
            also .gz. Default: standard output.
        text_column: Column of the texts in an input table (.csv, .tsv, .jsonl); the output is then
            a table as well. Default: the column of the training data if the table has it, otherwise
            every line of the input is a text.
        text_pair_column: Column of the second text, for rerankers and classifiers of pairs.
        prefix: Prefix for the names of the columns that are added to a table.
        batch_size: Texts in a batch.
        dtype: bfloat16 is faster on some processors; probabilities change in the third decimal.
    """

    _argument_group_name: ClassVar[str] = "reading and writing"

    input_file: str | None = None
    output_file: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    prefix: str | None = None
    batch_size: int = 32
    dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self):
        check_number("batch_size", self.batch_size, minimum=1, maximum=MAX_BATCH_SIZE)
        if self.dtype != "float32" and self.engine != "torch":
            raise InputError(
                f"--dtype {self.dtype} is for --engine torch; graphs compute as they were exported"
            )
        if self.input_file is not None:
            check_file("input_file", self.input_file, may_be_pipe=True)
        if self.output_file is not None:
            check_output_file(self.output_file, "--output_file")
        if self.text_column is None:
            # A table can also be read by the column names of the model's training data.
            may_be_table = file_format(self.input_file or "") in TABLE_FORMATS
            of_tables = ["text_pair_column"]
            if not may_be_table:
                of_tables += ["column_names", "prefix"]
            for name in of_tables:
                if getattr(self, name) is not None:
                    raise InputError(
                        f"--{name} is for tables, not for lines; name the column of the texts "
                        "with --text_column"
                    )
        elif self.input_file is None:
            raise InputError(
                f"--text_column {self.text_column} needs a table; give it as --input_file"
            )
        else:
            check_table_name("--input_file", self.input_file)
            if self.output_file is not None:
                check_table_name("--output_file", self.output_file)


@dataclass
class AnsweringArguments:
    """Options of the predictions. Each applies to some tasks, and is refused for models of others.

    Args:
        top_k: classify: return this many labels, the most probable first. causal: sample from this
            many of the most probable tokens. Default: one label; all tokens.
        threshold: classify: leave out labels with a lower probability. Default: no threshold if
            each text has one label, 0.5 if it can have several.
        none_label: classify: output for a label below the threshold. Default: -
        beams: seq2seq, causal: number of beams. Default: as saved with the model.
        max_new_tokens: seq2seq, causal: maximum number of generated tokens. Default: causal 50,
            otherwise as saved with the model.
        greedy: causal: always choose the most probable token instead of sampling.
        temperature: causal: values below 1 make probable tokens even more probable. Default: 0.8
        top_p: causal: sample from the most probable tokens whose probabilities add up to this.
            Default: 0.95
        repetition_penalty: causal: values above 1 penalise tokens that already occur in the text.
        seed: causal: seed of the sampling. Default: 42
    """

    _argument_group_name: ClassVar[str] = "answers"

    top_k: int | None = None
    threshold: float | None = None
    none_label: str | None = None
    beams: int | None = None
    max_new_tokens: int | None = None
    greedy: bool = False
    temperature: float | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    def __post_init__(self):
        for name in ("top_k", "max_new_tokens"):
            check_number(name, getattr(self, name), minimum=1)
        check_number("beams", self.beams, minimum=1, maximum=MAX_BEAMS)
        check_number("threshold", self.threshold, minimum=0, maximum=1)
        check_number("temperature", self.temperature, minimum=MIN_TEMPERATURE)
        check_number(
            "repetition_penalty",
            self.repetition_penalty,
            minimum=MIN_TEMPERATURE,
            maximum=1 / MIN_TEMPERATURE,
        )
        check_number("top_p", self.top_p, above=0, maximum=1)
        check_number("seed", self.seed, minimum=0, maximum=MAX_SEED)
        given = self.given
        searching = [name for name in ("greedy", "beams") if name in given]
        sampling = [name for name in _SAMPLING if name in given]
        if len(searching) > 1:
            raise InputError("--greedy can't be combined with --beams; give one of them")
        if searching and sampling:
            raise InputError(
                f"--{sampling[0]} can't be combined with --{searching[0]}, which does not sample"
            )

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by their names."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and value is not False
        }


def parse_predict(
    argv: Sequence[str],
) -> tuple[ReadingArguments, dict[str, Any], str]:
    """The options of `roformer-lite predict`: input and output, the given options of the
    predictions, and the directory of the model."""
    parser = CommandParser(
        "predict",
        "Read lines, or a column of a table, and write one prediction for each: generated text, "
        "label and probability, or tagged tokens, depending on the task of the model.",
        [ReadingArguments, AnsweringArguments],
        DIR=_MODEL,
    )
    files, answering, paths = parser.parse(argv)
    options = answering.given
    if files.text_pair_column is not None:
        options["text_pair_column"] = files.text_pair_column
    check_model_name(paths.dir)
    if files.output_file is not None:
        check_answers_file(files.output_file, files.input_file, paths.dir)
    check_engine(files.engine, paths.dir, files.device)
    return files, options, paths.dir


@dataclass
class AppArguments(EngineArguments):
    """Options of `roformer-lite app`.

    Args:
        host: Address to listen on. Default: 127.0.0.1, which only this machine can reach.
        port: Port to listen on. Default: the first free one from 7860.
    """

    host: str | None = None
    port: int | None = None

    def __post_init__(self):
        check_number("port", self.port, minimum=1, maximum=65535)


def parse_app(argv: Sequence[str]) -> tuple[AppArguments, str]:
    """The options of `roformer-lite app`, and the model's directory."""
    parser = CommandParser(
        "app",
        "Open a page in the browser to try a model.",
        [AppArguments],
        DIR=_MODEL,
    )
    options, paths = parser.parse(argv)
    require_packages("a page", {"gradio": "app"})
    check_engine(options.engine, paths.dir, options.device)
    return options, paths.dir


def parse_convert(argv: Sequence[str]) -> tuple[Namespace, Path]:
    """The options of `roformer-lite convert`, and the new directory."""
    parser = CommandParser(
        "convert",
        "Convert a checkpoint of another system into a model of this package (--from), or a model "
        "of this package into a checkpoint of another system (--to). Without either, a model of "
        "this package is converted to a family that supports it, and anything else becomes a model "
        "of this package. OUT must be new or empty.",
        CHECKPOINT="a directory with config.json and weights",
        OUT="the directory to write",
    )
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument("--from", **_SOURCE)
    direction.add_argument(
        "--to",
        dest="target",
        metavar="FAMILY",
        help=(
            f"The family to convert a model of this package to: {AUTO} (one that supports all "
            "features of the model), or its name. An unknown name is answered with a list of all "
            "families."
        ),
    )
    (options,) = parser.parse(argv)
    check_directory(options.checkpoint)
    return options, new_directory(options.out)


@dataclass
class ExportArguments:
    """Options of `roformer-lite export`.

    Args:
        format: Format to write.
        quantization: How to store the weights, for formats with a choice (onnx: int8; ctranslate2:
            int8, int8_float32, float16, bfloat16; gguf: f16, bf16, q8_0).
        embeddings: onnx: export one vector per text, pooled according to `classifier_pooling`,
            instead of the head's output (the default for models without a head).
        padded: onnx, torch: write graphs that compute padding, for runtimes that allow only fixed
            shapes.
    """

    format: Format = "onnx"
    quantization: str | None = None
    embeddings: bool = False
    padded: bool = False

    def __post_init__(self):
        if self.padded and self.format not in GRAPH_FORMATS:
            raise InputError(f"--padded is for --format onnx and torch, not for {self.format}")
        if self.embeddings and self.format != "onnx":
            raise InputError(f"--embeddings is for --format onnx, not for {self.format}")
        check_quantization(self.format, self.quantization)


def parse_export(argv: Sequence[str]) -> tuple[ExportArguments, str, Path]:
    """The options of `roformer-lite export`, the model's directory and the new one."""
    parser = CommandParser(
        "export",
        "Write a saved model and its tokenizer in the format of another runtime. OUT must be new "
        "or empty.",
        [ExportArguments],
        DIR="the model's directory",
        OUT="the directory to write",
    )
    options, paths = parser.parse(argv)
    check_model_name(paths.dir)
    check_libraries(options.format)
    return options, paths.dir, new_directory(paths.out)


@dataclass
class ServeArguments:
    """Options of `roformer-lite serve`, with the same names as in `transformers serve`.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        device: cpu, cuda, cuda:1 …; auto is cuda if there is one.
        dtype: Data type of the weights; auto: as saved.
        log_level: Lowest level of messages to log.
        continuous_batching: Causal models: compute requests together, with a paged cache.
        cb_block_size: Tokens in a block of that cache.
        cb_num_blocks: Blocks of that cache.
        cb_max_batch_tokens: Maximum number of tokens in a step.
        cb_max_memory_percent: Maximum fraction of a GPU's memory for that cache.
    """

    host: str = "localhost"
    port: int = 8000
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "warning"
    continuous_batching: bool = False
    cb_block_size: int | None = None
    cb_num_blocks: int | None = None
    cb_max_batch_tokens: int | None = None
    cb_max_memory_percent: float | None = None

    def __post_init__(self):
        check_number("port", self.port, minimum=1, maximum=65535)
        for name, value in vars(self).items():
            if name.startswith("cb_") and value is not None:
                check_number(name, value, above=0)
                if not self.continuous_batching:
                    raise InputError(
                        f"--{name} {value} has no effect without --continuous_batching"
                    )


def parse_serve(argv: Sequence[str]) -> tuple[str, ServeArguments]:
    """The model of `roformer-lite serve`, and the options."""
    parser = CommandParser(
        "serve",
        "Serve a causal model over HTTP with OpenAI's API (/v1/completions and, if the tokenizer "
        "has a chat template, /v1/chat/completions), with the server of transformers. vLLM also "
        "serves encoders and classifiers: see docs/exporting.md.",
        [ServeArguments],
        MODEL=_MODEL,
    )
    options, paths = parser.parse(argv)
    require_packages("serving", dict.fromkeys(("fastapi", "openai", "uvicorn"), "serve"))
    return paths.model, options


def parse_verify(argv: Sequence[str]) -> tuple[Namespace]:
    """The options of `roformer-lite verify`."""
    parser = CommandParser(
        "verify",
        "Run a checkpoint in its own system and after conversion, and print how far apart the "
        "outputs are.",
        CHECKPOINT="a directory with config.json and weights",
    )
    parser.add_argument("--from", default=AUTO, **_SOURCE)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the random input.")
    (options,) = parser.parse(argv)
    check_number("seed", options.seed, minimum=0, maximum=MAX_SEED)
    check_directory(options.checkpoint)
    return (options,)
