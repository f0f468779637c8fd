"""Exported graphs in the place of the model they were made from: onnxruntime and OpenVINO.

The loop of generation stays that of transformers' `generate`, so that all its options work; graphs
compute the steps.
"""

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from ..saved_model import naming, read_object

if TYPE_CHECKING:
    from transformers.exporters.metadata import ExportMetadata

Graph = Callable[..., ModelOutput]  # called with the arguments of the model's `forward`, by name
# What transformers calls the keys and values of the tokens before: `past_key_values` before 5.24,
# `cache` from then on. The inputs of a graph have the name of the version that exported it.
_NAMES_OF_CACHE = ("cache", "past_key_values")
_FIELDS = {field.name for field in fields(CausalLMOutputWithPast)}
_NAME_OF_CACHE = next(name for name in _NAMES_OF_CACHE if name in _FIELDS)  # as installed


def load_graphs(folder: Path, engine: str) -> dict[str, Graph]:
    """The graphs of an exported model by their names: `model`, or `prefill` and `decode`, and
    `encoder`.

    Raises:
        InputError: when a file is missing or cannot be read.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # it reports each import over the network
    from transformers.exporters.metadata import ExportMetadata

    manifest, load = (
        read_object(folder / "export.json"),
        _onnx_graph if engine == "onnx" else _openvino_graph,
    )
    with naming(folder):
        return {
            name: load(
                folder / Path(entry["file"]).name,
                _with_name_of_cache(ExportMetadata.from_dict(entry["metadata"])),
            )
            for name, entry in manifest["components"].items()
        }


def _with_name_of_cache(metadata: "ExportMetadata") -> "ExportMetadata":
    """What the exporter recorded, with the outputs named as by the installed transformers, which
    may not be the version that exported the graph."""
    for name in _NAMES_OF_CACHE:
        # The names are a string of JSON within one of JSON, so their quotes are escaped.
        metadata.out_spec = metadata.out_spec.replace(f'\\"{name}\\"', f'\\"{_NAME_OF_CACHE}\\"')
    return metadata


def _onnx_graph(path: Path, metadata: "ExportMetadata") -> Graph:
    from onnxruntime import InferenceSession, SessionOptions
    from transformers.exporters.runners.runner_onnx import OnnxModelRunner

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return OnnxModelRunner(
        metadata, InferenceSession(path, options, providers=["CPUExecutionProvider"])
    )


def _openvino_graph(path: Path, metadata: "ExportMetadata") -> Graph:
    import openvino
    from transformers.exporters.runners.runner_openvino import OpenVINOModelRunner

    # Without the first, processors that can would multiply in bfloat16.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_NUM_THREADS"] = torch.get_num_threads()
    core = openvino.Core()
    return OpenVINOModelRunner(core.compile_model(core.read_model(path), "CPU", settings), metadata)


class GraphModel:
    """The graph of an encoder with its head.

    Args:
        graphs: With `model` alone.
        config: Of the model.
    """

    device = torch.device("cpu")

    def __init__(self, graphs: dict[str, Graph], config: PreTrainedConfig):
        self.graph, self.config = graphs["model"], config
        self.generation_config = GenerationConfig()

    def __call__(self, **inputs: torch.Tensor) -> ModelOutput:
        """What the model returns for the inputs that it was traced with; it takes no others."""
        return self.graph(**inputs)


class GraphGenerator(GenerationMixin):
    """The graphs of a model that generates, with transformers' `generate`.

    Args:
        graphs: `prefill`, which reads the prompt; `decode`, which reads one more token; `encoder`,
            where there is one.
        config: Of the model.
        generation_config: As saved with the model.
    """

    device, dtype = torch.device("cpu"), torch.float32
    main_input_name, base_model_prefix, input_modalities = "input_ids", "model", ("text",)
    _is_stateful = False  # a private name of transformers, which `generate` reads of every model

    def __init__(
        self,
        graphs: dict[str, Graph],
        config: PreTrainedConfig,
        generation_config: GenerationConfig,
    ):
        self.graphs, self.config, self.generation_config = graphs, config, generation_config
        if config.is_encoder_decoder:
            self.encoder = _Encoder(graphs["encoder"])

    def can_generate(self) -> bool:
        return True

    def is_remote_code(self) -> bool:
        return False

    def get_encoder(self) -> "_Encoder":
        return self.encoder

    def get_experts_implementation(self) -> None:
        return None

    def _reorder_cache(self, cache: Cache, beam_idx: torch.Tensor) -> Cache:
        """All beams of a source have the same keys and values of it, so only those of the target
        move. A private name of transformers: `generate` calls it, where a model has it, in place of
        moving the whole cache."""
        _cache_of_target(cache).reorder_cache(beam_idx)
        return cache

    def __call__(self, **inputs: Any) -> ModelOutput:
        return self.forward(**inputs)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: ModelOutput | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> ModelOutput:
        """One step: `logits` `(B, L, vocab)` and the longer cache. `generate` calls it, with
        `cache` or, before transformers 5.24, `past_key_values`."""
        cache = past_key_values if cache is None else cache
        past = cache.get_seq_length()
        if attention_mask is None:  # `generate` leaves out one without padding
            states = (
                encoder_outputs.last_hidden_state if self.config.is_encoder_decoder else input_ids
            )
            length = states.shape[1] + (0 if self.config.is_encoder_decoder else past)
            attention_mask = torch.ones(len(states), length, dtype=torch.long)
        graph = self.graphs["decode" if past else "prefill"]
        given = {"attention_mask": attention_mask}
        given |= {name: cache for name in _NAMES_OF_CACHE if name in graph.metadata.kwargs}
        if self.config.is_encoder_decoder:
            given |= {"decoder_input_ids": decoder_input_ids, "encoder_outputs": encoder_outputs}
        else:
            given |= {"input_ids": input_ids, "position_ids": position_ids}
        outputs = graph(**given)
        for layer in _cache_of_target(outputs[_NAME_OF_CACHE]).layers:
            if layer.is_sliding:
                # Exporters trace a layer with a window as one without, which has the keys of all
                # tokens, and keep the number of tokens that it had in the trace.
                layer.cumulative_length = layer.keys.shape[-2]
        return outputs


def _cache_of_target(cache: Cache) -> Cache:
    """The keys and values of the tokens that are generated, without those of a source."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


class _Encoder:
    """The encoder as `generate` calls it."""

    main_input_name = "input_ids"

    def __init__(self, graph: Graph):
        self.graph = graph

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> ModelOutput:
        return self.graph(input_ids=input_ids, attention_mask=attention_mask)

    def __call__(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any
    ) -> ModelOutput:
        return self.forward(input_ids, attention_mask)
