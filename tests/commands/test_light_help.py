"""`--help` is shown and mistakes are refused without importing torch and other heavy libraries."""

import json
import re

import pytest
from conftest import ROOT
from program import in_new_process
from saved_models import save_model

from roformer_lite.cli import COMMANDS

HEAVY = set("gradio fastapi torch hf_roformer_lite datasets sklearn".split())
CODE = """
import json, sys
from roformer_lite.cli import main
for arguments, status in json.loads(sys.argv[1]):
    try:
        ended = main(arguments)
    except SystemExit as error:
        ended = error.code
    assert ended == status, (arguments, ended)
    assert not set(sys.argv[2:]) & set(sys.modules), arguments
"""
MISTAKES = {
    "predict": "nowhere/at/all --batch_size 0".split(),
    "evaluate": "model --test_file x --lable_column y".split(),
    "export": "model out --format tflite".split(),
    "train": "classify --train_file nowhere.csv --output_dir m".split(),
    "convert": ["model"],
}


def test_nothing_heavy_is_imported():
    runs = [([name, "--help"], 0) for name in COMMANDS]
    runs += [([name, *words], 2) for name, words in MISTAKES.items()]
    runs += [(["train", "classify", "--help"], 0), ([], 0), (["--help"], 0)]
    done = in_new_process("-c", CODE, json.dumps(runs), *HEAVY, timeout=120)
    for name in COMMANDS:
        assert f"usage: roformer-lite {name}" in done.stdout


def test_warnings_of_libraries_are_not_shown():
    code = """
import logging, warnings
from roformer_lite.cli import main
assert main(["export", "nowhere/at/all", "out"]) == 2
logging.getLogger("library").warning("noise of a library")
warnings.warn("noise of Python")
logging.getLogger("library").error("an error of a library")
logging.getLogger("roformer_lite.train").warning("a warning of ours")
import torch, transformers
logging.getLogger("torch.onnx").warning("noise of torch")
transformers.logging.get_logger("transformers").warning("noise of transformers")
"""
    done = in_new_process("-c", code, timeout=120)
    assert "noise" not in done.stderr + done.stdout
    assert "an error of a library" in done.stderr and "a warning of ours" in done.stderr


WITHOUT_EXTRAS = """
import importlib.util, sys
find_spec = importlib.util.find_spec
def find(name, *package):
    return None if name.partition(".")[0] in extras else find_spec(name, *package)
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in extras:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
extras = set(sys.argv[1].split())
importlib.util.find_spec = find
sys.meta_path.insert(0, Blocked())
from roformer_lite.cli import main
sys.exit(main(sys.argv[2:]))
"""
EXTRAS = (
    "accelerate datasets fastapi gguf gradio jinja2 matplotlib onnx onnxruntime onnxscript openai "
    "optuna pandas peft pycrfsuite rich rjieba sacrebleu scipy sentence_transformers seqeval "
    "sklearn tensorboard torchao trl uvicorn ctranslate2"
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", "classify tag seq2seq causal mlm".split())
def test_predict_needs_no_extra(kind, tmp_path):
    model = save_model(kind, tmp_path / kind)
    command = ["-c", WITHOUT_EXTRAS, EXTRAS, "predict", model]
    done = in_new_process(*command, input="a fine film\n")
    assert done.stdout.count("\n") == 1


@pytest.mark.slow
def test_a_command_names_the_packages_that_it_needs():
    data = ROOT / "examples" / "data" / "intents_train.csv"
    command = ["-c", WITHOUT_EXTRAS, EXTRAS, "train", "classify"]
    command += ["--train_file", data, "--output_dir", "nowhere"]
    done = in_new_process(*command, status=2)
    assert re.search("`pip install .*scikit-learn", done.stderr)
    assert "Traceback" not in done.stderr
