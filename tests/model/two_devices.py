"""Two devices where there are none: tensors that say where they lie, compute on the CPU, and refuse to be mixed.

Run as a script, as it gives torch a backend for the rest of the process. It spreads models over both devices as
accelerate does for `device_map`, and prints how far the results are from those of the model in one piece. Before, it
prints what a training forward reads from its device and sends to it.
"""

import json
from collections import Counter

import torch
from accelerate import dispatch_model
from conftest import VOCAB, build, seq2seq_config, stack_config
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from toy_training import make_model, make_rows

import hf_roformer_lite as rl

FIRST, SECOND = "privateuseone:0", "privateuseone:1"
aten = torch.ops.aten
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default}
copies: Counter[str] = Counter()  # between host and device, and other operators that wait for the device


class PlacedTensor(torch.Tensor):
    """A CPU tensor with another device's name."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=device, **layout)

    def __init__(self, inner: torch.Tensor, device: torch.device):
        self.inner = inner

    def tolist(self):
        copies["others that wait"] += 1
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})


def compute(function, args, kwargs):
    """Run one operator on the CPU; its result lies where its arguments lie, which must be one place."""
    tensors: list[torch.Tensor] = []
    tree_map(lambda value: tensors.append(value) if isinstance(value, torch.Tensor) else None, (args, kwargs))
    devices = {tensor.device for tensor in tensors if tensor.ndim}
    if len(devices) > 1 and function is not torch.ops.aten.copy_.default:
        raise RuntimeError(f"{function} got tensors on {sorted(map(str, devices))}")
    device = torch.device("cpu")
    count(function, tensors, kwargs)
    if kwargs.get("device") is not None:
        device, kwargs = torch.device(kwargs["device"]), {**kwargs, "device": torch.device("cpu")}
    elif tensors:
        device = next((tensor.device for tensor in tensors if tensor.ndim), tensors[0].device)
    inner = tree_map(lambda value: value.inner if isinstance(value, PlacedTensor) else value, (args, kwargs))
    result = function(*inner[0], **inner[1])
    if function._schema.is_mutable and isinstance(result, torch.Tensor):
        return args[0]
    if device.type == "cpu":
        return result
    return tree_map(lambda value: PlacedTensor(value, device) if isinstance(value, torch.Tensor) else value, result)


def count(function, tensors: list[torch.Tensor], kwargs) -> None:
    is_away = bool(tensors) and tensors[0].device.type != "cpu"
    if function is aten._to_copy.default and kwargs.get("device") is not None:
        goes_away = torch.device(kwargs["device"]).type != "cpu"
        copies["sent" if goes_away else "read"] += is_away != goes_away
    is_mask = function is aten.index.Tensor and any(tensor.dtype == torch.bool for tensor in tensors[1:])
    copies["others that wait"] += is_away and (function in WAITING or is_mask)


class EveryOperator(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return compute(function, args, kwargs or {})


class MadeFromLists(TorchFunctionMode):
    """`torch.tensor` moves its result where no mode of operators sees it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.tensor and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        return function(*args, **kwargs)


def device_map(prefix: str, layers: int) -> dict[str, str]:
    """A stack whose last layer and norm lie on the second device."""
    first = [f"{prefix}.embeddings", f"{prefix}.rotary_emb", *(f"{prefix}.layers.{i}" for i in range(layers - 1))]
    last = [f"{prefix}.layers.{layers - 1}", f"{prefix}.final_norm"]
    return dict.fromkeys(first, FIRST) | dict.fromkeys(last, SECOND)


ONE = device_map("model", 2)
LM_HEAD = {"lm_transform": SECOND, "lm_head": FIRST}
PAIR = device_map("model.encoder", 1) | device_map("model.decoder", 2) | LM_HEAD
CASES = {
    "mlm": (lambda: make_model("mlm"), ONE | LM_HEAD, "mlm"),
    "sliding": (lambda: build(rl.RoFormerLiteForMaskedLM, stack_config("sliding")), ONE | LM_HEAD, "mlm"),
    "eager": (lambda: build(rl.RoFormerLiteForMaskedLM, stack_config(backend="eager")), ONE | LM_HEAD, "mlm"),
    "single": (lambda: make_model("single"), ONE | {"classifier": SECOND}, "single"),
    "causal": (lambda: make_model("causal"), ONE | LM_HEAD, "causal"),
    "seq2seq": (lambda: make_model("seq2seq"), PAIR, "seq2seq"),
    "sliding pair": (
        lambda: build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config("sliding")),
        PAIR,
        "seq2seq",
    ),
}


def results(model, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Logits, loss, all hidden states, and what `generate` writes."""
    with torch.no_grad():
        output = model(**inputs)
        layers = model(**inputs, output_hidden_states=True)
    found = [output.logits, output.loss, *(layers.get("hidden_states") or layers.decoder_hidden_states)]
    if model.can_generate():
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        found.append(model.generate(**source, max_new_tokens=5, min_new_tokens=5, num_beams=2))
    return found


def copies_of_a_training_forward(kind: str, lengths: list[int]) -> dict[str, int]:
    ids = torch.randint(5, VOCAB, (len(lengths), max(lengths)))
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    with MadeFromLists(), EveryOperator(), torch.no_grad():
        model = make_model(kind).to(FIRST).train()
        inputs = {key: value.to(FIRST) for key, value in inputs.items()}
        copies.clear()
        model(**inputs)
    return dict(copies)


def main() -> None:
    _setup_privateuseone_for_python_backend()
    found = {
        kind: [copies_of_a_training_forward(kind, lengths) for lengths in ([9, 8, 9], [20, 17, 12, 8, 5, 3, 2, 1])]
        for kind in ("mlm", "causal", "seq2seq")
    }
    print(json.dumps(found))
    differences = {}
    for name, (make, places, kind) in CASES.items():
        rows = make_rows(kind)
        inputs = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
        wanted = results(make(), inputs)
        with MadeFromLists(), EveryOperator():
            model = make()
            model = dispatch_model(model, places, skip_keys=model._skip_keys_device_placement)
            assert {str(parameter.device) for parameter in model.parameters()} == {FIRST, SECOND}
            got = results(model, {key: value.to(FIRST) for key, value in inputs.items()})
            got = [value.to("cpu") for value in got]
        pairs = zip(got, wanted, strict=True)
        differences[name] = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
    try:
        with MadeFromLists(), EveryOperator():
            torch.ones(2, device=FIRST) + torch.ones(2, device=SECOND)
    except RuntimeError as error:
        differences["mixed"] = str(error)
    print(json.dumps(differences))


if __name__ == "__main__":
    main()
