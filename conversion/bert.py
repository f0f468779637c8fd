"""HF BERT and ERNIE, all heads.

Example:
    >>> model = convert("bert", hf_model.state_dict(), hf_model.config.to_dict())

BERT counts every position of a row, ours only the real tokens: in rows padded on the left each token keeps the
position that it has without padding. Their pre-training class becomes our masked language model, their next-sentence
class a classification of sequences.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import BertConfig, ErnieConfig

from hf_roformer_lite import RoFormerLiteConfig

from .bert_family import BertFamilyConverter, bert_heads
from .converter import SourceConfig
from .hugging_face import Rules
from .weight_map import WeightRule
from .weight_operations import SumOfRows

SEGMENTS = "embeddings.token_type_embeddings.weight"


class Bert(BertFamilyConverter):
    """BERT, and sentence encoders of its shape."""

    name = "bert"
    prefix = "bert"
    config_class = BertConfig
    has_pooler = True
    heads = bert_heads("bert", causal="LMHeadModel")


class Ernie(BertFamilyConverter):
    """ERNIE 2 and 3. Each token has the embedding of a task, here that of the first one, a part of its segment's."""

    name = "ernie"
    prefix = "ernie"
    config_class = ErnieConfig
    has_pooler = True
    heads = bert_heads("ernie")

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        has_tasks = any(name.endswith("task_type_embeddings.weight") for name in state_dict)
        return super().complete_config(source_config, state_dict) | {"use_task_id": has_tasks}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rules = super().stack_rules(ours, source_config)
        if not source_config.get("use_task_id"):
            return rules
        both = (SEGMENTS, "embeddings.task_type_embeddings.weight")
        others = (rule for rule in rules if rule.theirs != SEGMENTS)
        return (*others, WeightRule(both, SEGMENTS, SumOfRows()))


CONVERTERS = (Bert(), Ernie())
