"""The machine's best rate for a matrix product: the fastest of the libraries at hand, each with all it can prepare.

A floor that is one must not be lower than what another library does. `fastest` tries oneDNN (with the weight as it is,
and packed once), MKL (likewise), both as torch carries them, and onnxruntime where it is installed, in float32 and
bfloat16. On a GPU it is torch's own product.
"""

import math
import time
from collections.abc import Callable
from functools import cache

import torch
from torch.nn import functional as F

ROUNDS, MIN_SECONDS = 30, 0.002  # measurements of each library, alternating, and how long one takes at least
Product = Callable[[], object]


def _onednn(states: torch.Tensor, weight: torch.Tensor) -> dict[str, Product]:
    if not torch.backends.mkldnn.is_available():
        return {}
    linear, pack = torch.ops.mkldnn._linear_pointwise, torch.ops.mkldnn._reorder_linear_weight
    packed = pack(weight, len(states))
    return {
        "oneDNN": lambda: linear(states, weight, None, "none", [], ""),
        "oneDNN, packed": lambda: linear(states, packed, None, "none", [], ""),
    }


def _mkl(states: torch.Tensor, weight: torch.Tensor) -> dict[str, Product]:
    if not torch.backends.mkl.is_available() or states.dtype != torch.float32:
        return {}
    rows = len(states)
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    return {"MKL, packed": lambda: torch.ops.mkl._mkl_linear(states, packed, weight, None, rows)}


def _onnxruntime(states: torch.Tensor, weight: torch.Tensor) -> dict[str, Product]:
    """A graph of one product, whose weight onnxruntime packs when it loads the graph. It has no bfloat16 on a CPU."""
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        return {}
    if states.dtype != torch.float32:
        return {}
    rows, outputs = len(states), len(weight)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["states", "weight"], ["product"])],
        "product",
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, list(states.shape))],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, [rows, outputs])],
        [numpy_helper.from_array(weight.t().contiguous().numpy(), "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # would slow down whoever runs next
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {"states": states.numpy()}
    return {"onnxruntime": lambda: session.run(None, given)}


def products(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: str = "cpu") -> dict[str, Product]:
    """`(rows, inputs)` by a weight `(outputs, inputs)`, by the name of what computes it; calls return the product."""
    states = torch.randn(rows, inputs, dtype=dtype, device=device)
    weight = torch.randn(outputs, inputs, dtype=dtype, device=device)
    found: dict[str, Product] = {"torch": lambda: F.linear(states, weight)}
    if device == "cpu":
        for library in (_onednn, _mkl, _onnxruntime):
            found |= library(states, weight)
    return found


@torch.no_grad()
def measure(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> dict[str, float]:
    """Billions of operations a second of each library on the CPU, the best of alternating measurements."""
    seconds = {}
    found = products(rows, inputs, outputs, dtype)
    for name, product in found.items():
        product()
        start = time.perf_counter()
        product()
        seconds[name] = [time.perf_counter() - start]
    repeats = {name: math.ceil(MIN_SECONDS / once[0]) for name, once in seconds.items()}
    for _ in range(ROUNDS):
        for name, product in found.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                product()
            seconds[name].append((time.perf_counter() - start) / repeats[name])
    operations = 2 * rows * inputs * outputs
    return {name: operations / min(times) / 1e9 for name, times in seconds.items()}


@cache
def fastest(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: str) -> Product:
    """The product of this shape by the library that is fastest for it on this machine."""
    with torch.no_grad():
        found = products(rows, inputs, outputs, dtype, device)
    if len(found) == 1:
        return found["torch"]
    rates = measure(rows, inputs, outputs, dtype)
    return found[max(rates, key=rates.__getitem__)]


RATED_SHAPES = [(1024, 512, 512), (1024, 512, 2048), (1024, 2048, 512), (1024, 768, 3072), (8, 256, 8192)]


def measure_rates() -> dict[str, dict[str, float]]:
    """Billions of operations a second by library, for shapes of small and base encoders and of a step of decoding."""
    return {
        f"({rows}, {inputs}) by ({inputs}, {outputs}), {str(dtype).removeprefix('torch.')}": measure(
            rows, inputs, outputs, dtype
        )
        for rows, inputs, outputs in RATED_SHAPES
        for dtype in (torch.float32, torch.bfloat16)
    }
