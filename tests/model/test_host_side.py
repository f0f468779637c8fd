"""What a forward pass reads from its device and makes on the host: the same little at any number of lengths."""

from collections import Counter

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config
from torch.utils._python_dispatch import TorchDispatchMode

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration, RoFormerLiteForMaskedLM
from hf_roformer_lite.model.fused_cross_entropy import chunk_rows
from hf_roformer_lite.model.host_side import move_together, on_host

aten = torch.ops.aten
COUNTED = {
    aten.lift_fresh.default: "from lists",
    aten.nonzero.default: "nonzero",
    aten._local_scalar_dense.default: "scalars",
    aten.equal.default: "scalars",
    aten.is_nonzero.default: "scalars",
    aten.masked_select.default: "nonzero",
    aten.unique_consecutive.default: "nonzero",
}


class Counting(TorchDispatchMode):
    """Counts the operators that read numbers of tensors or make tensors of lists."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in COUNTED:
            self.counts[COUNTED[function]] += 1
        if function is aten.index.Tensor and any(index is not None and index.dtype == torch.bool for index in args[1]):
            self.counts["nonzero"] += 1
        return function(*args, **(kwargs or {}))


def counts_of(run, monkeypatch) -> Counter:
    mode, tolist = Counting(), torch.Tensor.tolist
    with monkeypatch.context() as patch, mode:
        patch.setattr(torch.Tensor, "tolist", lambda tensor: mode.counts.update(["tolist"]) or tolist(tensor))
        for name in ("tensor", "as_tensor"):
            made = getattr(torch, name)

            def counting(data, *args, made=made, **kwargs):
                mode.counts["from lists"] += not isinstance(data, torch.Tensor)
                return made(data, *args, **kwargs)

            patch.setattr(torch, name, counting)
        run()
    return mode.counts


def rows(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, VOCAB, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids, mask.long()


@pytest.mark.parametrize("items", [None, 7])
@pytest.mark.parametrize("lengths", [[9, 8, 9], [60, 40, 27, 18, 12, 8, 5, 3, 2, 1]])
@pytest.mark.parametrize("name", ["default", "sliding"])
@pytest.mark.parametrize("kind", ["mlm", "causal", "pair"])
def test_a_training_step_reads_its_masks_and_nothing_else(kind, name, lengths, items, monkeypatch):
    ids, mask = rows(lengths)
    labels = ids.masked_fill(mask == 0, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels, "num_items_in_batch": items}
    if kind == "pair":
        target, target_mask = rows([lengths[-1] + 1, *lengths[:-1]])
        inputs["labels"] = target.masked_fill(target_mask == 0, -100)
        model = build(RoFormerLiteForConditionalGeneration, seq2seq_config(name))
    else:
        head = RoFormerLiteForMaskedLM if kind == "mlm" else RoFormerLiteForCausalLM
        model = build(head, stack_config(name))
    model.train()
    losses = []
    counts = counts_of(lambda: losses.append(model(**inputs).loss), monkeypatch)
    counts += counts_of(lambda: losses[0].backward(), monkeypatch)
    assert not counts, "on a CPU masks and labels are looked at where they are"


def test_counting_sees_what_it_counts(monkeypatch):
    flags = torch.tensor([True, False])

    def run():
        torch.tensor([1]), flags.nonzero(), flags.tolist(), bool(flags.any()), flags[flags]

    found = counts_of(run, monkeypatch)
    assert found["from lists"] >= 1 and found["nonzero"] >= 2 and found["tolist"] == 1 and found["scalars"] >= 1


def test_many_tensors_go_in_one_copy(monkeypatch):
    """Every dtype and shape comes out of the shared buffer as it went in."""
    sent = []

    class Buffer:
        def __init__(self, tensor):
            self.tensor = tensor

        def to(self, device, non_blocking):
            sent.append((str(device), non_blocking))
            return self.tensor

        def split(self, sizes):
            return self.tensor.split(sizes)

    numbers = torch.arange(6).view(2, 3)
    value = {"a": [numbers, numbers[:, 1]], "b": (numbers % 2 == 0), "c": torch.arange(5, dtype=torch.int32), "d": "x"}
    value["e"] = numbers[:0]
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **more: Buffer(empty(*shape, **more)))
    moved = move_together(value, "cuda")
    monkeypatch.undo()
    assert sent == [("cuda", True)]
    assert moved["d"] == "x" and set(moved) == set(value)
    pairs = zip(*([*held["a"], held["b"], held["c"], held["e"]] for held in (moved, value)), strict=True)
    for new, old in pairs:
        assert new is not old and new.dtype == old.dtype and torch.equal(new, old)


def test_a_device_gets_more_at_a_time_than_a_cpu():
    """A chunk is a launch of kernels there: 256 MiB of float32, in the LM head and in the feed-forward."""
    assert [chunk_rows(8_192, torch.device(name)) for name in ("cpu", "cuda")] == [256, 8_192]
    assert chunk_rows(10**7, torch.device("cuda")) == 256
    mlp = build(RoFormerLiteForMaskedLM, stack_config(intermediate_size=1_024)).model.layers[0].mlp
    sizes = []
    for device, needs_grad in (("cpu", False), ("cuda", False), ("cuda", True)):
        rows = type("Rows", (), {"device": torch.device(device), "__len__": lambda self: 10**6})()
        sizes.append(mlp._size_of_piece(rows, needs_grad))
    assert sizes == [2_048, 65_536, 10**6]


def test_nothing_moves_on_a_cpu():
    mask = torch.ones(2, 3)
    assert on_host(mask, None)[0] is mask
    value = {"a": [mask], "b": None}
    assert move_together(value, "cpu") is value
