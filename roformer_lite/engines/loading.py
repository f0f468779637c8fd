"""An exported directory, loaded by its engine."""

from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import ModelOutput

from ..errors import InputError
from ..saved_files import find_file
from ..saved_model import check_generation_config
from .ctranslate2 import CTranslate2Generator
from .graphs import GraphGenerator, GraphModel, load_graphs

_GENERATING = ("ForConditionalGeneration", "ForCausalLM")


class Engine(Protocol):
    """What tasks ask of a model. Encoders are called, models that generate have `generate`."""

    config: PreTrainedConfig
    generation_config: GenerationConfig
    device: torch.device

    def __call__(self, **inputs: torch.Tensor) -> ModelOutput: ...

    def generate(self, **inputs: Any) -> torch.Tensor: ...


def load_engine(engine: str, directory: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Engine:
    """What `roformer-lite export` wrote, ready to answer. It computes with as many threads as torch does.

    Args:
        engine: One of `onnx`, `openvino` and `ctranslate2`; `check_engine` has accepted it.
        directory: Where the folder of the engine lies, beside configuration and tokenizer.
        config: Of the model.
        tokenizer: Of the model.

    Raises:
        InputError: when a file is missing or wrong, or the engine has no such model.
    """
    check_generation_config(directory, config)
    architecture = config.architectures[0]
    folder, generates = Path(directory) / engine, architecture.endswith(_GENERATING)
    generation_config = GenerationConfig()
    if find_file(directory, "generation_config.json") is not None:
        generation_config = GenerationConfig.from_pretrained(directory)
    if engine == "ctranslate2":
        if not generates:
            raise InputError(
                f"--engine ctranslate2: {architecture} was exported without its head, which CTranslate2 does not have"
            )
        return CTranslate2Generator(folder, config, generation_config, tokenizer)
    graphs = load_graphs(folder, engine)
    return GraphGenerator(graphs, config, generation_config) if generates else GraphModel(graphs, config)
