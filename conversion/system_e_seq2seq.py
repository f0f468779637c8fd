"""System E: a sequence-to-sequence Transformer with separate vocabularies. Takes ids, gives logits, and generates.

Example:
    >>> config = {"src_vocab": 5000, "tgt_vocab": 5000, "d_model": 512, "N": 6, "heads": 8, "d_ff": 2048, "pad": 0}
    >>> model = convert("scratch-seq2seq", state_dict, config)
    >>> model.generate(source_ids, attention_mask=source_ids != 0, num_beams=4)

Its norm divides by the standard deviation of a sample, σₙ₋₁ = σ·√(n / (n - 1)): with this folded into the gain, it is
a layer norm.
"""

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteSeq2SeqConfig,
)

from .converter import PLAIN, Converter, SourceConfig, Tensors, refuse_others, require
from .reference_systems import ScratchSeq2Seq
from .weight_map import Name, NameTable, Operation, Scale

SIZES = ("src_vocab", "tgt_vocab", "d_model", "N", "heads", "d_ff")
EMBEDDINGS = (
    Name("src_embedding.embed.embed.weight", "model.encoder.embeddings.word_embeddings.weight"),
    Name("tgt_embedding.embed.embed.weight", "model.decoder.embeddings.word_embeddings.weight"),
    Name("fc_out.*", "lm_head.*"),
)
ATTENTION = (("w_q", "q_proj"), ("w_k", "k_proj"), ("w_v", "v_proj"), ("fc_out", "o_proj"))
SUBLAYERS = {"encoder": ("self_attn", "mlp"), "decoder": ("self_attn", "cross_attn", "mlp")}


def stack_names(side: str, gain: Operation) -> list[Name]:
    """Rows of the encoder or the decoder; `gain` folds the norms."""
    theirs, ours = f"{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
    rows = [
        Name(f"{theirs}.{attention}.{source}.*", f"{ours}.{attention}.{target}.*")
        for attention in SUBLAYERS[side][:-1]
        for source, target in ATTENTION
    ]
    rows += [
        Name(f"{theirs}.feed_forward.w_1.*", f"{ours}.mlp.up_proj.*"),
        Name(f"{theirs}.feed_forward.w_2.*", f"{ours}.mlp.down_proj.*"),
    ]
    norms = {f"{theirs}.sublayers.{j}.norm": f"{ours}.{name}_norm" for j, name in enumerate(SUBLAYERS[side])}
    for source, target in {**norms, f"{side}.norm": f"model.{side}.final_norm"}.items():
        rows += [Name(f"{source}.gamma", f"{target}.weight", gain), Name(f"{source}.beta", f"{target}.bias")]
    return rows


class ScratchSeq2SeqConverter(Converter):
    """`config`: src_vocab, tgt_vocab, d_model, N, heads, d_ff, pad (0), dropout (0.1); and for `generate` the ids with
    which targets begin and end, sos (1) and eos (2)."""

    name = "scratch-seq2seq"
    tolerances = {torch.float32: 1e-5, torch.float64: 1e-6}  # the folded gain is rounded, and so is its eps

    def config(self, source: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        refuse_others(source, self.name, (*SIZES, "pad", "dropout", "sos", "eos"))
        src_vocab, tgt_vocab, width, layers, heads, inner = require(source, self.name, *SIZES)
        ids = {"pad_token_id": source.get("pad", 0), "bos_token_id": source.get("sos", 1)}
        ids["eos_token_id"] = source.get("eos", 2)
        stack = {
            **PLAIN,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "hidden_act": "relu",
            "hidden_dropout": source.get("dropout", 0.1),
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

    def model_class(self, source: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteForConditionalGeneration

    def table(self, config: RoFormerLiteSeq2SeqConfig, source: SourceConfig) -> NameTable:
        width = config.hidden_size
        gain = Scale(((width - 1) / width) ** 0.5)
        rows = (*EMBEDDINGS, *stack_names("encoder", gain), *stack_names("decoder", gain))
        return NameTable(
            rows, dropped=("src_embedding.positional_encoding.pe", "tgt_embedding.positional_encoding.pe")
        )

    def reference(self, source: SourceConfig) -> nn.Module:
        return ScratchSeq2Seq(*(source[field] for field in SIZES), source.get("pad", 0))

    def inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
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
