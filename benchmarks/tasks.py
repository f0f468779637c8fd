"""The tasks that compare models, with the work of each contender and the floor."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel, RoFormerModel

from hf_roformer_lite.conversion import convert
from hf_roformer_lite.conversion.deeplotx import DeepLotxEncoder

from . import encoder_decoders, stacks
from .floor import FLOOR, Product, attention_operations, floor, stack_products
from .stacks import MAKERS, OURS, Kind, our_config
from .timing import Contender
from .workload import MASKED_SHARE, Batch, Workload, make_batches, with_inputs


@dataclass
class Comparison:
    """The contenders of a task, which do the same work, and the number of real tokens."""

    tokens: int
    contenders: list[Contender]


def chosen(names: list[str], work: Workload) -> list[str]:
    for name in work.only:
        if name not in (*names, FLOOR):
            raise SystemExit(
                f"only={name!r} is not a contender of this task; choose from {', '.join(names)}."
            )
    return [name for name in names if not work.only or name in work.only]


def with_floor(contenders: list[Contender], base: Contender, work: Workload) -> list[Contender]:
    if work.only and base.name not in work.only:
        return contenders
    return [*contenders, base]


def prepared(model: nn.Module, work: Workload, train: bool) -> nn.Module:
    model = model.to(work.device).train(train)
    if work.checkpointing:
        if not isinstance(model, PreTrainedModel):
            raise SystemExit(
                f"checkpointing=True is not possible: {type(model).__name__} has none; omit it."
            )
        model.activation_checkpointing_enable()
    if work.compile:
        return torch.compile(model)
    return model


def loss_of(result: Any) -> torch.Tensor:
    """The loss that a model returns as a tensor or as a field of its output."""
    if isinstance(result, torch.Tensor):
        return result
    return result.loss


def forward_only(model: nn.Module, batches: list[Batch], work: Workload) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad(), work.autocast():
            for _, inputs in with_inputs(batches):
                model(**inputs)

    return run


def steps(model: nn.Module, inputs: list[dict], work: Workload) -> Callable[[], None]:
    """Forward and backward passes without an optimizer, which would be the same for all."""

    def run() -> None:
        for one in inputs:
            model.zero_grad(set_to_none=True)
            with work.autocast():
                loss = loss_of(model(**one))
            loss.backward()

    return run


def work_of(
    model: nn.Module, batches: list[Batch], work: Workload, kind: Kind
) -> Callable[[], None]:
    """The forward pass of an encoder without gradients, or the step of a language model."""
    if kind == "encoder":
        return forward_only(prepared(model, work, train=False), batches, work)
    inputs = []
    for batch, given in with_inputs(batches):
        labels = batch.masked_lm_labels() if kind == "mlm" else batch.labels()
        inputs.append({**given, "labels": labels})
    return steps(prepared(model, work, train=True), inputs, work)


def compare_stacks(work: Workload, kind: Kind) -> Comparison:
    batches = make_batches(work)
    config = our_config(work)
    contenders = [
        Contender(name, work_of(MAKERS[kind][name](work, kind), batches, work, kind))
        for name in chosen(list(MAKERS[kind]), work)
    ]
    products: list[Product] = []
    query_key_pairs = 0.0
    for batch in batches:
        products += stack_products(config, batch.tokens)
        query_key_pairs += sum(length**2 for length in batch.lengths)
        if kind != "encoder":
            labelled = num_labelled(batch, kind)
            products.append((labelled, config.hidden_size, work.vocab_size))
    if kind == "causal":
        # A token attends only to earlier tokens.
        query_key_pairs /= 2
    attention = attention_operations(config, query_key_pairs)
    base = floor(work, products, attention, train=kind != "encoder")
    return Comparison(sum(batch.tokens for batch in batches), with_floor(contenders, base, work))


def num_labelled(batch: Batch, kind: Kind) -> int:
    """The number of tokens of a batch that a language model predicts."""
    if kind == "mlm":
        return round(batch.tokens * MASKED_SHARE)
    # The last token of a row has no successor.
    return batch.tokens - len(batch.lengths)


def encoder(work: Workload) -> Comparison:
    """The forward pass of an encoder, without gradients."""
    return compare_stacks(work, "encoder")


def mlm(work: Workload) -> Comparison:
    """The forward and backward pass of masked language modelling with labels for 15 % of the
    tokens."""
    return compare_stacks(work, "mlm")


def causal(work: Workload) -> Comparison:
    """The forward and backward pass of causal language modelling."""
    return compare_stacks(work, "causal")


def seq2seq(work: Workload) -> Comparison:
    """The forward and backward pass of an encoder–decoder. The lengths of sources and targets are
    independent."""
    sources = make_batches(work)
    targets = make_batches(work, salt=1)
    inputs = [
        {**given, "labels": target.labels()}
        for (_, given), target in zip(with_inputs(sources), targets, strict=True)
    ]
    contenders = []
    for name in chosen(list(encoder_decoders.ENCODER_DECODERS), work):
        model = prepared(encoder_decoders.ENCODER_DECODERS[name](work), work, train=True)
        contenders.append(Contender(name, steps(model, inputs, work)))
    config = our_config(work)
    products: list[Product] = []
    query_key_pairs = 0.0
    for source, target in zip(sources, targets, strict=True):
        products += stack_products(config, source.tokens)
        products += stack_products(config, target.tokens, source.tokens)
        products.append((target.tokens, config.hidden_size, work.vocab_size))
        for source_length, target_length in zip(source.lengths, target.lengths, strict=True):
            query_key_pairs += source_length**2 + source_length * target_length
            # The decoder attends only to earlier target tokens.
            query_key_pairs += target_length**2 / 2
    base = floor(work, products, attention_operations(config, query_key_pairs), train=True)
    tokens = sum(batch.tokens for batch in (*sources, *targets))
    return Comparison(tokens, with_floor(contenders, base, work))


def generate(work: Workload) -> Comparison:
    """Greedy generation with an encoder–decoder: exactly `seq` tokens per row from sources of up to
    `seq` tokens. Only generated tokens are counted.
    """
    (source,) = make_batches(dataclasses.replace(work, batches=1))
    inputs = {"input_ids": source.input_ids, "attention_mask": source.attention_mask}
    settings = GenerationConfig(
        max_new_tokens=work.seq, min_new_tokens=work.seq, do_sample=False, **encoder_decoders.TOKENS
    )

    def run(model: nn.Module) -> None:
        with torch.no_grad(), work.autocast():
            if model.generate(**inputs, generation_config=settings).shape[1] != work.seq + 1:
                raise RuntimeError(f"{type(model).__name__} stopped early")

    contenders = []
    names = [name for name in encoder_decoders.ENCODER_DECODERS if name != "torch"]
    for name in chosen(names, work):
        model = prepared(encoder_decoders.ENCODER_DECODERS[name](work), work, train=False)
        contenders.append(Contender(name, lambda model=model: run(model)))
    return Comparison(work.batch * work.seq, contenders)


def local_layers(work: Workload, kind: Kind = "encoder") -> Comparison:
    """The forward pass with global attention in every third layer and windows of 128 tokens in the
    others, as in ModernBERT."""
    batches = make_batches(work)
    num_layers = our_config(work).num_hidden_layers
    local = ["sliding_attention"] * num_layers
    mixed = list(local)
    mixed[::3] = ["full_attention"] * len(mixed[::3])

    def ours(layer_types: list[str]) -> nn.Module:
        return stacks.stock(our_config(work, layer_types=layer_types, sliding_window=64), kind)

    peer = "modernbert" if kind == "encoder" else "modernbert, sparse"
    makers = {
        OURS: lambda: ours(mixed),
        peer: lambda: MAKERS[kind][peer](work, kind, layer_types=mixed, local_attention=128),
        "ours, all layers local": lambda: ours(local),
    }
    contenders = [
        Contender(name, work_of(makers[name](), batches, work, kind))
        for name in chosen(list(makers), work)
    ]
    return Comparison(sum(batch.tokens for batch in batches), contenders)


def local_layers_step(work: Workload) -> Comparison:
    """The forward and backward pass of masked language modelling with the models of
    `local_layers`."""
    return local_layers(work, "mlm")


def roformer_weights(work: Workload) -> Comparison:
    """The forward pass of one RoFormer checkpoint of transformers, in its own class and converted
    to ours."""
    batches = make_batches(work)
    theirs = RoFormerModel(stacks.roformer_config(work)).eval()
    mine = convert(
        "roformer",
        theirs.state_dict(),
        {**theirs.config.to_dict(), "architectures": ["RoFormerModel"]},
    )
    models = {OURS: mine, "roformer": theirs}
    contenders = [
        Contender(name, forward_only(prepared(models[name], work, train=False), batches, work))
        for name in chosen(list(models), work)
    ]
    return Comparison(sum(batch.tokens for batch in batches), contenders)


def number_types(work: Workload) -> Comparison:
    """The forward and backward pass of our masked language model in float32, and in bfloat16 by
    autocast."""
    batches = make_batches(work)
    dtypes = {"ours, float32": "float32", "ours, bfloat16": "bfloat16"}
    contenders = []
    for name in chosen(list(dtypes), work):
        own = dataclasses.replace(work, dtype=dtypes[name])
        model = MAKERS["mlm"][OURS](own, "mlm")
        contenders.append(Contender(name, work_of(model, batches, own, "mlm")))
    return Comparison(sum(batch.tokens for batch in batches), contenders)


DEEPLOTX = {"feature_dim": 512, "heads": 12, "ffn_layers": 4, "ffn_expansion": 4}


def deeplotx(work: Workload, train: bool = False) -> Comparison:
    """The DeepLoTX encoder at its published size, compared with one module per head."""
    plain = DeepLotxEncoder(**DEEPLOTX)
    ours = convert("deeplotx", plain.state_dict(), DEEPLOTX)
    (batch,) = make_batches(dataclasses.replace(work, batches=1))
    vectors = torch.randn(*batch.input_ids.shape, DEEPLOTX["feature_dim"], device=work.device)
    ((_, inputs),) = with_inputs([batch])
    mask = inputs["attention_mask"]
    visible = None
    if mask is not None:
        # The shape is (B, 1, L).
        visible = mask[:, None, :].bool()
    calls = {
        OURS: lambda: ours(inputs_embeds=vectors, attention_mask=mask).last_hidden_state,
        "one module a head": lambda: plain(vectors, visible),
    }
    for model in (plain, ours):
        model.to(work.device).train(train)

    def run(name: str) -> None:
        with torch.set_grad_enabled(train), work.autocast():
            result = calls[name]()
        if train:
            plain.zero_grad(set_to_none=True)
            ours.zero_grad(set_to_none=True)
            result.float().square().mean().backward()

    contenders = [
        Contender(name, lambda name=name: run(name)) for name in chosen(list(calls), work)
    ]
    return Comparison(batch.tokens, contenders)


def deeplotx_step(work: Workload) -> Comparison:
    """The forward and backward pass of the DeepLoTX encoder at its published size."""
    return deeplotx(work, train=True)


TASKS: dict[str, Callable[[Workload], Comparison]] = {
    "encoder": encoder,
    "mlm": mlm,
    "causal": causal,
    "seq2seq": seq2seq,
    "generate": generate,
    "local-layers": local_layers,
    "local-layers-step": local_layers_step,
    "roformer-weights": roformer_weights,
    "number-types": number_types,
    "deeplotx": deeplotx,
    "deeplotx-step": deeplotx_step,
}
