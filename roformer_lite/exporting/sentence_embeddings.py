"""How a text's vector is pooled, in the file that sentence-transformers and text-embeddings-inference read."""

import json
from pathlib import Path

from transformers import PreTrainedModel

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteModel

_POOLINGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}


def is_bare_encoder(model: PreTrainedModel) -> bool:
    """Whether a model gives nothing but the states of its tokens, and so may be exported for embeddings."""
    return isinstance(model, RoFormerLiteModel) and not model.config.is_decoder


def write_pooling(config: RoFormerLiteConfig, directory: Path) -> None:
    """Write `1_Pooling/config.json` into `directory`, which exists."""
    modes = {field: pooling == config.classifier_pooling for pooling, field in _POOLINGS.items()}
    folder = directory / "1_Pooling"
    folder.mkdir()
    content = {"word_embedding_dimension": config.hidden_size, **modes}
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")
