"""`python -m benchmarks graphs [options]`: time exported graphs that compute padding (`padded`) or
only real tokens (`flat`).

The models are encoders with random weights: a BERT of the size of MiniLM, a BERT of size base, and
a RoFormerLite of size small. Each is exported as `roformer-lite export` does it, after
`padding_free(model, False)` and after `padding_free(model)`. Graphs in float32 and in int8 run in
onnxruntime, and those in float32 also in OpenVINO if it is installed. Both graphs of a model get
the same batches and alternate in one process. Times are processor times of one batch, with one
thread. `difference` is the largest difference of an output at real tokens. In int8, the scale of
the activations of a padded graph depends on its padding, too.

The extra `export` is needed, and about 2 GiB for temporary files.
"""

import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hf_roformer_lite import padding_free
from roformer_lite.export.graphs import write_graphs

from .contenders import MINILM, ROFORMER_LITE, SIZES, Size, new_model
from .padding_free import ORDERS, places_per_token
from .report import Row, report, summary
from .timing import alternate
from .workload import Batch, Workload, check_known, make_batches

Arrays = dict[str, np.ndarray]
Graph = Callable[[Arrays], list[np.ndarray]]

PADDED = "padded"
FLAT = "flat"
# The family and the size of each model.
MODELS: dict[str, tuple[str, Size]] = {
    "minilm": ("bert", MINILM),
    "bert-base": ("bert", SIZES["base"]),
    "roformer_lite-small": (ROFORMER_LITE, SIZES["small"]),
}
COLUMNS = ["model", "engine", "order", "places a token", f"{PADDED}, ms", f"{FLAT}, ms"]
COLUMNS += ["speed-up", "difference"]


@dataclass
class Options:
    models: list[str] = field(
        default_factory=lambda: [*MODELS], metadata={"help": ", ".join(MODELS)}
    )
    batch: int = field(default=32, metadata={"help": "rows of a batch"})
    seq: int = field(default=128, metadata={"help": "longest row, in tokens"})
    vocab_size: int = 30522
    rounds: int = field(default=7, metadata={"help": "measurements of each graph; they alternate"})
    quick: bool = field(
        default=False, metadata={"help": "tiny models and batches, to see that all of it works"}
    )
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})

    def __post_init__(self) -> None:
        if self.quick:
            self.batch = 8
            self.seq = 32
            self.vocab_size = 500
            self.rounds = 1
        check_known("models", self.models, MODELS)


# Graphs


def export(name: str, folder: Path, options: Options) -> dict[str, Path]:
    """Export the model `name` in both forms, each to a folder with the graphs of all precisions."""
    family, size = MODELS[name]
    if options.quick:
        size = SIZES["tiny"]
    folders = {form: folder / form for form in (PADDED, FLAT)}
    for form, own_folder in folders.items():
        own_folder.mkdir()
        # The weights are the same at every call.
        model = new_model(family, "encoder", size, options.vocab_size)
        model = padding_free(model, enabled=form == FLAT)
        # The exporter of torch prints its progress.
        with redirect_stdout(io.StringIO()):
            write_graphs(model, own_folder, format="onnx", quantization="int8")
    return folders


def open_in_onnxruntime(path: Path) -> Graph:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # A waiting thread would use processor time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, sess_options=options)
    names = [value.name for value in session.get_inputs()]
    return lambda arrays: session.run(None, {name: arrays[name] for name in names})


def open_in_openvino(path: Path) -> Graph:
    # This module reports each import over the network.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    model = openvino.Core().compile_model(path, "CPU", settings)
    names = [value.any_name for value in model.inputs]
    return lambda arrays: list(model({name: arrays[name] for name in names}).values())


# The file and the function that opens it.
ENGINES: dict[str, tuple[str, Callable[[Path], Graph]]] = {
    "onnxruntime, fp32": ("model.onnx", open_in_onnxruntime),
    "onnxruntime, int8": ("model_quantized.onnx", open_in_onnxruntime),
}
if find_spec("openvino") is not None:
    ENGINES["OpenVINO, fp32"] = ("model.onnx", open_in_openvino)


# Measurements


def arrays_of(batch: Batch) -> Arrays:
    input_ids = batch.input_ids.numpy()
    return {
        "input_ids": input_ids,
        "attention_mask": batch.attention_mask.numpy(),
        "token_type_ids": np.zeros_like(input_ids),
    }


class Pass:
    """A graph that computes all batches. It keeps its last outputs."""

    def __init__(self, graph: Graph, batches: list[Arrays]) -> None:
        self.graph = graph
        self.batches = batches
        self.outputs: list[list[np.ndarray]] = []

    def __call__(self) -> None:
        self.outputs = [self.graph(arrays) for arrays in self.batches]


def largest_difference(first: Pass, second: Pass) -> float:
    """The largest difference of an output, without the states of padding."""
    differences = []
    for arrays, outputs, others in zip(first.batches, first.outputs, second.outputs, strict=True):
        is_real = arrays["attention_mask"] == 1
        for one, other in zip(outputs, others, strict=True):
            distance = np.abs(one - other)
            if distance.ndim == 3:  # (B, L, hidden), in contrast to the vector of a row.
                distance = distance[is_real]
            differences.append(float(distance.max()))
    # The maximum of numpy, unlike that of Python, is NaN if one of them is.
    return float(np.max(differences))


def compare(graphs: dict[str, Graph], order: str, options: Options) -> Row:
    """Both graphs of a model in one engine."""
    work = Workload(
        batch=options.batch,
        seq=options.seq,
        lengths=ORDERS[order],
        vocab_size=options.vocab_size,
    )
    batches = make_batches(work)
    arrays = [arrays_of(batch) for batch in batches]
    passes = {form: Pass(graph, arrays) for form, graph in graphs.items()}
    times = alternate(list(passes.values()), options.rounds)
    seconds = {
        form: [one / len(batches) for one in own] for form, own in zip(passes, times, strict=True)
    }
    return {
        "order": order,
        "places_per_token": places_per_token([(batch, None) for batch in batches]),
        "contenders": summary(seconds, base=FLAT),
        "difference": largest_difference(passes[PADDED], passes[FLAT]),
    }


def comparisons(options: Options) -> Iterator[Row]:
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            folders = export(name, Path(folder), options)
            for engine, (file, open_graph) in ENGINES.items():
                graphs = {form: open_graph(path / file) for form, path in folders.items()}
                for order in ORDERS:
                    row = compare(graphs, order, options)
                    yield {"model": name, "engine": engine, **row}


def cells_of(row: Row) -> list[str]:
    cells = [row["model"], row["engine"], row["order"], f"{row['places_per_token']:.2f}"]
    for form in (PADDED, FLAT):
        cells.append(f"{1000 * row['contenders'][form]['median_seconds']:.1f}")
    return [*cells, f"{row['contenders'][PADDED]['times']:.2f}", f"{row['difference']:.0e}"]


def main(options: Options) -> None:
    rows = comparisons(options)
    report("graphs", options, COLUMNS, rows, cells_of, unit="processor seconds")
