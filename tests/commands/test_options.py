"""Options: `--help` and mistakes are answered at once, and every stock training argument is an option."""

import dataclasses
import re
from typing import get_type_hints

import pytest
from transformers import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments
from transformers.debug_utils import DebugOption
from transformers.trainer_utils import IntervalStrategy, SchedulerType

from roformer_lite.cli import COMMANDS, main
from roformer_lite.commands.train import check_options, parse_options
from roformer_lite.errors import InputError
from roformer_lite.training import stock_arguments as stock_module
from roformer_lite.training.stock_arguments import COMPUTED_DEFAULT, stock_arguments
from roformer_lite.training.task_arguments import TASK_ARGUMENTS
from roformer_lite.training.tasks import TASKS

STOCK = {"mlm": TrainingArguments, "seq2seq": Seq2SeqTrainingArguments}
NEEDED = ["--dataset_name", "x", "--output_dir", "m", "--use_cpu", "true"]

# Refused by the parser of transformers itself, whatever the value: their types take no text.
NOT_FROM_TEXT = {"liger_kernel_config", "parallelism_config"}
# Their choices or types are computed when transformers is imported, so that only the class itself can refuse a value.
REFUSED_LATE = {"log_level", "log_level_replica", "parallelism_config"}

HELP = [[], *([command] for command in COMMANDS if command != "serve"), *(["train", task] for task in TASK_ARGUMENTS)]
HELP = [*([*command, "--help"] for command in HELP), ["train", "tag", "--help-all"]]
MISTAKES = [
    (["trian"], "invalid choice: 'trian'"),
    (["train", "mlm", *NEEDED, "--learning_rat", "1"], "--learning_rat 1; did you mean --learning_rate"),
    (["train", "seq2seq", *NEEDED, "--generation-num-beam", "1"], "did you mean --generation_num_beams"),
    (["train", "mlm", *NEEDED, "--max_steps", "many"], "invalid int value: 'many'"),
    (["train", "mlm", *NEEDED, "--lr_scheduler_type", "linaer"], "invalid choice: 'linaer'"),
    (["train", "mlm", *NEEDED, "--bf16", "perhaps"], "perhaps"),
    (["train", "mlm", "--dataset_name", "x"], "give --output_dir"),
    (["train", "tag", "--output_dir", "m"], "give either --train_file or --dataset_name"),
    (["train", "tag", "--output_dir", "m", "--train_file", "nowhere.tsv"], "--train_file nowhere.tsv: No such file"),
    (["train", "causal", *NEEDED, "--block_size", "4"], "--block_size=4 must be at least 8"),
    (["train", "mlm", *NEEDED, "--mlm_probability", "1.5"], "--mlm_probability=1.5 must be above 0 and at most 1"),
    (["train", "mlm", *NEEDED, "--config", "hidden_size"], "--config hidden_size: name=value is needed"),
    (["predict", "m", "--batch_size", "0"], "--batch_size=0 must be at least 1"),
    (["predict", "m", "--text_column", "a"], "--text_column a needs --input_file"),
    (["evaluate", "m"], "give either --test_file or --dataset_name"),
    (["evaluate", "m", "--dataset_name", "x", "--lable_column", "y"], "did you mean --label_column"),
    (["predict"], "the following arguments are required: DIR"),
    (["bundle", "m", "out", "--code"], "unrecognized arguments: --code"),
    (["demo", "--sed", "1"], "did you mean --seed"),
    (["export", "m", "out", "--format", "tflite"], "choose one of onnx, torch"),
    (["convert", "m", "out", "--from", "bert", "--to", "bert"], "--from can't be combined with --to"),
    (["verify", "m", "--from", "brt"], "--from brt: there is no such system; choose auto"),
    (["predict", "./modle"], "./modle: there is no such directory"),
    (["export", "models/none/here", "out"], "models/none/here: there is no such directory"),
    (["convert", "nowhere", "out", "--from", "bert"], "nowhere: there is no such directory"),
    (["bundle", __file__, "out"], "is a file; the directory of a model is needed"),
    (
        ["train", "mlm", *NEEDED, "--model_name_or_path", "a//b"],
        "--model_name_or_path a//b: there is no such directory",
    ),
    (["train", "mlm", *NEEDED, "--tokenizer", "tok/"], "--tokenizer tok/: there is no such directory"),
]


@pytest.mark.parametrize("command", HELP, ids=" ".join)
def test_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("usage:") and printed.err == ""


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_mistakes(command, message, capsys):
    """One sentence, and what to do; nothing is done."""
    try:
        status = main(command)
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert message in printed.err and len(printed.err.splitlines()) <= 3


def test_a_mistake_is_told_with_what_to_do(capsys):
    with pytest.raises(SystemExit):
        main(["train", "seq2seq", "--train_file"])
    assert capsys.readouterr().err == (
        "roformer-lite train seq2seq: error: argument --train_file: expected at least one argument\n"
        "`roformer-lite train seq2seq --help` lists the options.\n"
    )


def test_help_has_own_options_in_groups_and_on_request_all(capsys):
    printed = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["train", "classify", option])
        printed.append(capsys.readouterr().out.strip())
    groups = [re.findall(r"^(\S.*):$", text, re.MULTILINE) for text in printed]
    assert groups[0] == ["options", "data", "model and tokenizer", "training", "model card", "Hub"]
    assert groups[1] == [*groups[0], "transformers' TrainingArguments"]
    assert printed[0].count("\n") < 220 and printed[0].splitlines()[-1].startswith("--help-all lists every option")
    own, stock = printed[1].split("transformers' TrainingArguments:")
    assert printed[0].startswith(own.strip())
    for option in ("--label_column", "--size", "--learning_rate", "--ema_decay", "--license", "--push_to_hub"):
        assert option in own and not re.search(f"{option}\\b", stock)
    assert "--adam_beta1" in stock and "(default: 0.0005)" in own and "(default: 0.9)" in stock


def test_help_lists_everything(capsys):
    for command, words in {
        ("--help",): ["demo", "train", "predict"],
        ("train", "--help"): ["seq2seq", "mlm", "causal", "classify", "tag"],
        ("train", "tag", "--help"): ["--tag_column", "--learning_rate", "--ema_decay", "--size", "--license"],
        ("predict", "--help"): ["DIR", "--beams", "--text_column", "--temperature"],
        ("evaluate", "--help"): ["DIR", "--test_file", "--label_column", "--bleu_tokenizer"],
    }.items():
        with pytest.raises(SystemExit) as ended:
            main(list(command))
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        assert all(word in printed for word in words)
    with pytest.raises(SystemExit) as ended:
        main(["train", "seq2seq", "--train_file", "a.tsv", "--output_dir", "x", "--no_such_option", "1"])
    assert ended.value.code == 2 and "unrecognized arguments: --no_such_option" in capsys.readouterr().err


@pytest.mark.parametrize("task", STOCK)
def test_fields_read_from_the_source_are_those_of_the_class(task):
    read = {field.name: field for field in dataclasses.fields(stock_arguments(STOCK[task].__name__, leave_out=()))}
    real = {field.name: field for field in dataclasses.fields(STOCK[task])}
    assert list(read) == list(real)
    for name, field in real.items():
        assert read[name].default in (field.default, COMPUTED_DEFAULT), name
        assert read[name].default_factory == field.default_factory
        assert read[name].metadata.get("help") == field.metadata["help"]
    computed = {name for name, field in read.items() if field.default == COMPUTED_DEFAULT}
    assert computed == {"optim"}


def test_a_source_that_cannot_be_read_gives_the_fields_of_the_class(monkeypatch):
    monkeypatch.setattr(stock_module, "_class_fields", lambda module, name: 1 / 0)
    read = {field.name: field.type for field in dataclasses.fields(stock_arguments("TrainingArguments", {"seed"}))}
    assert read == {name: hint for name, hint in get_type_hints(TrainingArguments).items() if name in read}
    assert set(read) | {"seed"} == {field.name for field in dataclasses.fields(TrainingArguments)}


def accepts(parser: HfArgumentParser, arguments: list[str]) -> bool:
    try:
        parser.parse_args(arguments)
    except SystemExit:
        return False
    return True


def text_for(field: dataclasses.Field, hint: object) -> list[str]:
    """A value of a field as it is typed, mostly different from its default."""
    kinds = [kind for kind in getattr(hint, "__args__", (hint,)) if kind is not type(None)]
    enums = [kind for kind in kinds if hasattr(kind, "__members__")]
    if "choices" in field.metadata or enums:
        return [list(field.metadata["choices"])[-1] if "choices" in field.metadata else list(enums[0])[-1].value]
    if field.name in TrainingArguments._VALID_DICT_FIELDS:
        return ['{"a": 1}']
    if field.name == "debug":
        return ["underflow_overflow"]
    if hint in (list[str], list[str] | None):
        return ["a", "b"]
    return ["false" if bool in kinds else {int: "3", float: "0.5"}.get(kinds[0], "text")]


@pytest.mark.parametrize("task", STOCK)
def test_every_stock_training_argument_is_an_option(task, monkeypatch, capsys):
    """Accepted at once and by the class, which gets the very value that the stock parser makes of the same text."""
    for kind in (STOCK[task], TASKS[task].training_classes()[0]):
        monkeypatch.setattr(kind, "__post_init__", lambda self: None)
    fields = [field for field in dataclasses.fields(STOCK[task]) if field.name not in NOT_FROM_TEXT]
    hints = get_type_hints(STOCK[task])
    given = [text for field in fields for text in (f"--{field.name}", *text_for(field, hints[field.name]))]
    stock, ours = (
        HfArgumentParser([kind]).parse_args_into_dataclasses(given, look_for_args_file=False)[0]
        for kind in (STOCK[task], TASKS[task].training_classes()[0])
    )
    for field in fields:
        value, expected = getattr(ours, field.name), getattr(stock, field.name)
        assert (type(value), value) == (type(expected), expected), field.name
    check_options(task, ["--dataset_name", "x", *given])


@pytest.mark.parametrize("task", STOCK)
def test_what_the_class_refuses_is_refused_at_once(task, capsys):
    quick = HfArgumentParser([stock_arguments(STOCK[task].__name__, leave_out=())])
    stock = HfArgumentParser([STOCK[task]])
    for field in dataclasses.fields(STOCK[task]):
        given = [f"--{field.name}", "nonsense"]
        assert accepts(quick, given) == (accepts(stock, given) or field.name in REFUSED_LATE), field.name
        assert not accepts(stock, given) or field.name not in NOT_FROM_TEXT


def test_values_reach_the_training_arguments():
    given = ["--lr_scheduler_type", "cosine_with_restarts", "--lr_scheduler_kwargs", '{"num_cycles": 2}']
    given += [
        "--debug",
        "underflow_overflow",
        "--include_for_metrics",
        "inputs",
        "loss",
        "--greater_is_better",
        "false",
    ]
    given += ["--eval_strategy", "steps", "--eval_steps", "0.25", "--no_dataloader_pin_memory", "--bf16"]
    given += ["--hub-private-repo", "true", "--data_seed", "7", "--report_to", "all", "--save_total_limit", "3"]
    args = parse_options("seq2seq", [*NEEDED, *given, "--generation_num_beams", "4"]).training
    assert isinstance(args, Seq2SeqTrainingArguments)
    assert args.lr_scheduler_type is SchedulerType.COSINE_WITH_RESTARTS and args.lr_scheduler_kwargs == {
        "num_cycles": 2
    }
    assert args.debug == [DebugOption.UNDERFLOW_OVERFLOW] and args.include_for_metrics == ["inputs", "loss"]
    assert args.greater_is_better is False and args.bf16 is True and args.dataloader_pin_memory is False
    assert args.eval_strategy is IntervalStrategy.STEPS and args.eval_steps == 0.25 and args.data_seed == 7
    assert args.hub_private_repo is True and isinstance(args.report_to, list) and args.generation_num_beams == 4
    assert (args.learning_rate, args.save_total_limit, args.seed) == (5e-4, 3, 42)


def test_what_transformers_refuses_is_an_input_error():
    with pytest.raises(InputError, match="requires the save and eval strategy to match"):
        parse_options("mlm", [*NEEDED, "--load_best_model_at_end", "--save_strategy", "no"])
    with pytest.raises(InputError, match="did you mean hidden_size"):
        parse_options("mlm", [*NEEDED, "--config", "hiden_size=3"])


def test_names_that_the_parser_repeats():
    """Names that the command line must know where what defines them needs packages that may not be installed."""
    assert list(TASK_ARGUMENTS) == list(TASKS)
    assert all(TASKS[name].arguments is arguments for name, arguments in TASK_ARGUMENTS.items())
