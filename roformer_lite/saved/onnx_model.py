"""Exported ONNX graphs that replace the model they were made from.

The loop of generation is transformers' `generate`, so that all its options work. The graphs only
compute its steps.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from ..errors import InputError, require_packages
from .saved_model import load_generation_config, naming, read_object

if TYPE_CHECKING:
    from transformers.exporters.metadata import ExportMetadata

# The keys and values of earlier tokens are called `cache` from transformers 5.24 on, and
# `past_key_values` before.
_NAME_OF_CACHE = "cache" if hasattr(CausalLMOutputWithPast, "cache") else "past_key_values"


@dataclass(eq=False)
class OnnxModel(GenerationMixin):
    """A model that onnxruntime computes, with as many threads as torch would use.

    Args:
        graphs: Objects of transformers' `OnnxModelRunner`: one graph called `model`. A model that
            generates has `prefill`, which reads the prompt, `decode`, which reads one more token,
            and possibly `encoder`.
        config: The configuration of the model.
        generation_config: The generation configuration that was saved with the model.
    """

    device = torch.device("cpu")
    dtype = torch.float32
    # `generate` reads these attributes of every model. The last one is a private name of
    # transformers.
    main_input_name = "input_ids"
    base_model_prefix = "model"
    input_modalities = ("text",)
    _is_stateful = False

    graphs: dict[str, Any]
    config: PreTrainedConfig
    generation_config: GenerationConfig

    @classmethod
    def load(cls, directory: str, config: PreTrainedConfig) -> "OnnxModel":
        """Load the graphs that `roformer-lite export` wrote into the folder `onnx` of `directory`.

        Raises:
            InputError: if a file is missing or cannot be read, or if the graphs were exported with
                a version of transformers that gives the keys and values another name.
        """
        from transformers.exporters.metadata import ExportMetadata

        require_packages("an exported model", ["onnxruntime"])
        folder = Path(directory) / "onnx"
        manifest = read_object(folder / "export.json")
        graphs = {}
        with naming(folder):
            for name, entry in manifest["components"].items():
                metadata = ExportMetadata.from_dict(entry["metadata"])
                file = Path(entry["file"]).name
                graphs[name] = _open_graph(folder / file, metadata)
        if "decode" in graphs and _NAME_OF_CACHE not in graphs["decode"].metadata.kwargs:
            raise InputError(
                f"{folder}: another version of transformers exported these graphs, and did not "
                f"name their keys and values {_NAME_OF_CACHE}; export the model again"
            )
        return cls(graphs, config, load_generation_config(directory))

    def can_generate(self) -> bool:
        return "model" not in self.graphs

    def is_remote_code(self) -> bool:
        return False

    def get_experts_implementation(self) -> None:
        return None

    def __call__(self, **inputs: Any) -> ModelOutput:
        """The outputs of the model. It only takes the inputs that it was exported with."""
        if self.can_generate():
            return self.forward(**inputs)
        return self.graphs["model"](**inputs)

    def generate(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        """Generate tokens in the same way as transformers' `generate`."""
        if self.config.is_encoder_decoder:
            encoder = self.graphs["encoder"]
            options["encoder_outputs"] = encoder(input_ids=input_ids, attention_mask=attention_mask)
        return super().generate(input_ids, attention_mask=attention_mask, **options)

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        decoder_input_ids: Any = None,
        encoder_outputs: Any = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> ModelOutput:
        """Compute one step: `logits` `(B, L, vocab)` and the extended cache. `generate` calls it
        with `cache`, or with `past_key_values` before transformers 5.24."""
        cache = past_key_values if cache is None else cache
        num_past = cache.get_seq_length()
        graph = self.graphs["decode" if num_past else "prefill"]
        # `generate` omits the mask if there is no padding.
        if attention_mask is None:
            if self.config.is_encoder_decoder:
                rows, length, _ = encoder_outputs.last_hidden_state.shape
            else:
                rows, length = input_ids.shape
                length += num_past
            attention_mask = torch.ones(rows, length, dtype=torch.long)
        inputs: dict[str, Any] = {"attention_mask": attention_mask}
        if _NAME_OF_CACHE in graph.metadata.kwargs:
            inputs[_NAME_OF_CACHE] = cache
        if self.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = decoder_input_ids
            inputs["encoder_outputs"] = encoder_outputs
        else:
            inputs["input_ids"] = input_ids
            inputs["position_ids"] = position_ids
        outputs = graph(**inputs)
        cache = outputs[_NAME_OF_CACHE]
        # The keys and values of a source do not grow.
        for layer in getattr(cache, "self_attention_cache", cache).layers:
            if layer.is_sliding:
                # Exporters trace a layer with a window as a layer without one. Its cache then holds
                # the keys of all tokens, but still has the number of tokens of the trace.
                layer.cumulative_length = layer.keys.shape[-2]
        return outputs


def is_exported(directory: str) -> bool:
    """Whether `roformer-lite export` has written ONNX graphs into this directory."""
    return (Path(directory) / "onnx" / "export.json").is_file()


def _open_graph(path: Path, metadata: "ExportMetadata") -> Any:
    from onnxruntime import InferenceSession, SessionOptions
    from transformers.exporters.runners.runner_onnx import OnnxModelRunner

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return OnnxModelRunner(metadata, session)
