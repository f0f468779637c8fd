"""Importing the package registers it and loads nothing else; each case in a process of its own."""

import subprocess
import sys

import pytest

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.registration import MODEL_TYPES, MODELS


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_no_torch():
    code = "import sys, transformers, hf_roformer_lite; print('torch' in sys.modules, dir(hf_roformer_lite))"
    loaded, _, names = run(code).partition(" ")
    assert loaded == "False" and "'RoFormerLiteModel'" in names


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "import hf_roformer_lite",
        "from transformers import AutoModel, AutoTokenizer, pipeline; import hf_roformer_lite",
        "import hf_roformer_lite.model.layers",  # which itself makes transformers load its Auto classes
        "import hf_roformer_lite.conversion",
        "import importlib.util, hf_roformer_lite; importlib.util.find_spec('transformers.models.auto.modeling_auto')",
    ],
)
def test_any_order_of_imports(first):
    code = f"""
{first}
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipelines
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING
config = AutoConfig.for_model("roformer_lite", hidden_size=32, num_hidden_layers=1, vocab_size=10)
pair = AutoConfig.for_model("roformer_lite_seq2seq", encoder=config.to_dict(), decoder=config.to_dict())
names = [type(AutoModel.from_config(config)), type(AutoModelForSeq2SeqLM.from_config(pair))]
names += [TOKENIZER_MAPPING[type(config)], pipelines.PIPELINE_REGISTRY.supported_tasks["translation"]["impl"]]
print(*(cls.__name__ for cls in names))
"""
    expected = "RoFormerLiteModel RoFormerLiteForConditionalGeneration RoFormerLiteTokenizer "
    assert run(code) == expected + "RoFormerLiteTranslationPipeline"


def test_two_threads_import():
    code = """
import threading
thread = threading.Thread(target=lambda: __import__("transformers.models.auto.modeling_auto"))
thread.start()
import hf_roformer_lite
thread.join()
from transformers import AutoConfig, AutoModel
config = AutoConfig.for_model("roformer_lite", hidden_size=32, num_hidden_layers=1, vocab_size=10)
print(type(AutoModel.from_config(config)).__name__)
"""
    assert run(code) == "RoFormerLiteModel"


def test_names_are_those_of_the_configs():
    """The table of names, which imports nothing, says what the configs say of their models."""
    for config in (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig):
        assert MODEL_TYPES[config.__name__] == config.model_type
        names = {auto: models[config.__name__] for auto, models in MODELS.items() if config.__name__ in models}
        assert names == {auto: model.__name__ for auto, model in config.auto_classes().items()}


# transformers itself goes on using its tables: they are hidden from whoever asks whether they are there.
HIDE = """
import builtins
has = builtins.hasattr
builtins.hasattr = lambda holder, name: name != {table!r} and has(holder, name)
{first}
import hf_roformer_lite
hf_roformer_lite.RoFormerLiteTokenizer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
config = AutoConfig.for_model("roformer_lite", hidden_size=32, num_hidden_layers=1, vocab_size=10)
pair = AutoConfig.for_model("roformer_lite_seq2seq", encoder=config.to_dict(), decoder=config.to_dict())
print(type(AutoModelForMaskedLM.from_config(config)).__name__, type(AutoModelForSeq2SeqLM.from_config(pair)).__name__)
"""


def test_a_model_that_cannot_be_imported_is_an_error():
    """Not an endless wait for an import that never ends."""
    broken = "import sys; sys.modules['hf_roformer_lite.model.parallel_heads'] = None\n"
    code = HIDE.format(table="_modules", first=broken)
    code = code.replace(
        "config = ", "hf_roformer_lite.RoFormerLiteConfig\nconfig = ", 1
    )  # the Auto classes are loaded
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "parallel_heads" in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("table", ["_config_mapping", "_reverse_config_mapping", "_model_mapping", "_modules"])
@pytest.mark.parametrize("first", ["import hf_roformer_lite", "import hf_roformer_lite.model.layers"])
def test_without_the_private_tables_of_transformers(table, first):
    names = run(HIDE.format(table=table, first=first))
    assert names == "RoFormerLiteForMaskedLM RoFormerLiteForConditionalGeneration"
