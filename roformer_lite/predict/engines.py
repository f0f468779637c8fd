"""What computes the answers of a model: torch, or another runtime that reads an exported directory.

An engine stands in the place of the model: it is called with what the tokenizer returns and gives
`logits`, or has `generate` with the arguments of transformers' own. What a task does before and
after is the same for all.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InputError
from ..export.formats import EXPORTED_ENGINES, check_libraries

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedTokenizerBase
    from transformers.configuration_utils import PreTrainedConfig
    from transformers.utils import ModelOutput

ENGINES = ("torch", *EXPORTED_ENGINES)
FASTEST = "auto"  # in the place of an engine's name: the fastest whose answers are torch's
_WEIGHTS = ("*.safetensors", "*.bin")
_GENERATING = ("ForConditionalGeneration", "ForCausalLM")


class Engine(Protocol):
    """What tasks ask of a model. Encoders are called, models that generate have `generate`."""

    config: "PreTrainedConfig"
    generation_config: "GenerationConfig"
    device: "torch.device"

    def __call__(self, **inputs: "torch.Tensor") -> "ModelOutput": ...

    def generate(self, **inputs: Any) -> "torch.Tensor": ...


def exported_engines(directory: str) -> list[str]:
    """The engines that have a folder in `directory`."""
    return [name for name in EXPORTED_ENGINES if os.path.isdir(Path(directory) / name)]


def check_engine(engine: str, directory: str, device: str | None = None) -> None:
    """Refuse an engine that cannot read `directory` here, before anything is loaded.

    Raises:
        InputError: naming the option and what would be right.
    """
    exported = exported_engines(directory)
    if engine == "torch":
        if exported and not any(next(Path(directory).glob(pattern), None) for pattern in _WEIGHTS):
            raise InputError(
                f"{directory} was exported for {exported[0]}: give --engine {exported[0]}"
            )
        return
    if engine not in exported:
        raise InputError(
            f"{directory} has no folder {engine}: it was not exported for --engine {engine}, as "
            f"`roformer-lite export DIR OUT --format {engine}` does"
        )
    if device not in (None, "cpu"):
        raise InputError(
            f"--device {device} is for --engine torch; {engine} computes on the CPU here"
        )
    check_libraries(engine)


def load_engine(
    engine: str, directory: str, config: "PreTrainedConfig", tokenizer: "PreTrainedTokenizerBase"
) -> Engine:
    """What `roformer-lite export` wrote, ready to answer. It computes with as many threads as torch
    does.

    Args:
        engine: One of `onnx`, `openvino` and `ctranslate2`; `check_engine` has accepted it.
        directory: Where the folder of the engine lies, beside configuration and tokenizer.
        config: Of the model.
        tokenizer: Of the model.

    Raises:
        InputError: when a file is missing or wrong, or the engine has no such model.
    """
    from ..saved_model import load_generation_config

    generation_config, architecture = load_generation_config(directory), config.architectures[0]
    folder, generates = Path(directory) / engine, architecture.endswith(_GENERATING)
    if engine == "ctranslate2":
        if not generates:
            raise InputError(
                f"--engine ctranslate2: {architecture} was exported without its head, which CTranslate2 does not have"
            )
        from .ctranslate2 import CTranslate2Generator

        return CTranslate2Generator(folder, config, generation_config, tokenizer)
    from .graphs import GraphGenerator, GraphModel, load_graphs

    graphs = load_graphs(folder, engine)
    return (
        GraphGenerator(graphs, config, generation_config)
        if generates
        else GraphModel(graphs, config)
    )
