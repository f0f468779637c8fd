"""System E: a sequence-to-sequence Transformer with two vocabularies. It takes ids, returns logits, and generates.

Example:
    >>> config = {"src_vocab": 5000, "tgt_vocab": 5000, "d_model": 512, "N": 6, "heads": 8, "d_ff": 2048, "pad": 0}
    >>> model = convert("scratch-seq2seq", state_dict, config)
    >>> model.generate(source_ids, attention_mask=source_ids != 0, num_beams=4)

Its norm divides by the sample standard deviation, σₙ₋₁ = σ·√(n / (n - 1)): with this factor folded into the gain, it
is a layer norm.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteSeq2SeqConfig,
)

from .converter import CLASSIC_FIELDS, Converter, SourceConfig, Tensors, refuse_unknown_fields, require_fields
from .reference_systems import ScratchSeq2Seq
from .weight_map import WeightMap, WeightRule
from .weight_operations import Operation, Scale

SIZES = ("src_vocab", "tgt_vocab", "d_model", "N", "heads", "d_ff")
EMBEDDINGS = (
    WeightRule("src_embedding.embed.embed.weight", "model.encoder.embeddings.word_embeddings.weight"),
    WeightRule("tgt_embedding.embed.embed.weight", "model.decoder.embeddings.word_embeddings.weight"),
    WeightRule("fc_out.*", "lm_head.*"),
)
ATTENTION = (("w_q", "q_proj"), ("w_k", "k_proj"), ("w_v", "v_proj"), ("fc_out", "o_proj"))
SUBLAYERS = {"encoder": ("self_attn", "mlp"), "decoder": ("self_attn", "cross_attn", "mlp")}


def stack_rules(side: str, gain: Operation) -> list[WeightRule]:
    """Rules of the encoder or the decoder; `gain` is the operation on the gains of the norms."""
    theirs, ours = f"{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
    rules = [
        WeightRule(f"{theirs}.{attention}.{source}.*", f"{ours}.{attention}.{target}.*")
        for attention in SUBLAYERS[side][:-1]
        for source, target in ATTENTION
    ]
    rules += [
        WeightRule(f"{theirs}.feed_forward.w_1.*", f"{ours}.mlp.up_proj.*"),
        WeightRule(f"{theirs}.feed_forward.w_2.*", f"{ours}.mlp.down_proj.*"),
    ]
    norms = {f"{theirs}.sublayers.{j}.norm": f"{ours}.{name}_norm" for j, name in enumerate(SUBLAYERS[side])}
    for source, target in {**norms, f"{side}.norm": f"model.{side}.final_norm"}.items():
        rules += [
            WeightRule(f"{source}.gamma", f"{target}.weight", gain),
            WeightRule(f"{source}.beta", f"{target}.bias"),
        ]
    return rules


class ScratchSeq2SeqConverter(Converter):
    """Config: src_vocab, tgt_vocab, d_model, N, heads, d_ff, pad (0), dropout (0.1); and for `generate` the first and
    last id of a target, sos (1) and eos (2)."""

    name = "scratch-seq2seq"
    tolerances = {torch.float32: 1e-5, torch.float64: 1e-6}  # the folded gain is rounded, and its eps too

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        refuse_unknown_fields(source_config, self.name, (*SIZES, "pad", "dropout", "sos", "eos"))
        src_vocab, tgt_vocab, width, layers, heads, inner = require_fields(source_config, self.name, *SIZES)
        ids = {"pad_token_id": source_config.get("pad", 0), "bos_token_id": source_config.get("sos", 1)}
        ids["eos_token_id"] = source_config.get("eos", 2)
        stack = {
            **CLASSIC_FIELDS,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "hidden_act": "relu",
            "hidden_dropout": source_config.get("dropout", 0.1),
            "norm_placement": "post",
            "norm_eps": 1e-18,
            "final_norm": True,
            "position_embedding_type": "sinusoidal",
            "scale_embeddings": True,
            **ids,
        }
        return RoFormerLiteSeq2SeqConfig(
            encoder=RoFormerLiteConfig(vocab_size=src_vocab, **stack),
            decoder=RoFormerLiteConfig(vocab_size=tgt_vocab, lm_head_bias=True, **stack),
            tie_word_embeddings=False,
            decoder_start_token_id=ids["bos_token_id"],
            **ids,
        )

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteForConditionalGeneration

    def weight_map(self, our_config: RoFormerLiteSeq2SeqConfig, source_config: SourceConfig) -> WeightMap:
        width = our_config.hidden_size
        gain = Scale(((width - 1) / width) ** 0.5)
        rules = (*EMBEDDINGS, *stack_rules("encoder", gain), *stack_rules("decoder", gain))
        return WeightMap(
            rules, ignored=("src_embedding.positional_encoding.pe", "tgt_embedding.positional_encoding.pe")
        )

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        return ScratchSeq2Seq(*(source_config[field] for field in SIZES), source_config.get("pad", 0))

    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        config = model.config
        pad, inputs = config.pad_token_id, {}
        for name, stack in (("src", config.encoder), ("tgt", config.decoder)):
            ids = torch.randint(1, stack.vocab_size, (3, 6), generator=generator)
            ids = torch.where(ids == pad, (pad + 1) % stack.vocab_size, ids)
            ids[1, 4:] = ids[2, 2:] = pad
            inputs[name] = ids
        return inputs | {"mask": inputs["tgt"] != pad, "src_mask": inputs["src"] != pad}

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        return {"logits": reference(inputs["src"], inputs["tgt"])[inputs["mask"]]}

    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        output = model(inputs["src"], inputs["src_mask"], inputs["tgt"], inputs["mask"], use_cache=False)
        return {"logits": output.logits[inputs["mask"]]}


CONVERTER = ScratchSeq2SeqConverter()
