"""Importing the package registers it, in any order of imports; each case in a process of its own."""

import subprocess
import sys

import pytest

EXPECTED = (
    "RoFormerLiteModel RoFormerLiteForConditionalGeneration RoFormerLiteTokenizer RoFormerLiteTranslationPipeline"
)


@pytest.mark.parametrize(
    "first",
    [
        "from transformers import AutoModel, AutoTokenizer, pipeline; import hf_roformer_lite",
        pytest.param("import hf_roformer_lite", marks=pytest.mark.slow),
        pytest.param("import hf_roformer_lite.model.modeling_roformer_lite", marks=pytest.mark.slow),
        pytest.param("import hf_roformer_lite.conversion", marks=pytest.mark.slow),
        pytest.param("import peft; import hf_roformer_lite", marks=pytest.mark.slow),
    ],
)
def test_any_order_of_imports(first):
    code = f"""
{first}
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, pipelines
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING
config = AutoConfig.for_model("roformer_lite", hidden_size=32, num_hidden_layers=1, vocab_size=10)
pair = AutoConfig.for_model("roformer_lite_seq2seq", encoder=config.to_dict(), decoder=config.to_dict())
names = [type(AutoModel.from_config(config)), type(AutoModelForSeq2SeqLM.from_config(pair))]
names += [TOKENIZER_MAPPING[type(config)], pipelines.PIPELINE_REGISTRY.supported_tasks["translation"]["impl"]]
print(*(cls.__name__ for cls in names))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == EXPECTED
