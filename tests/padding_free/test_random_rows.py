"""Random rows of every kind give the same numbers with and without `padding_free`.

A case is drawn from a seed, a class and a kind of rows. The environment variable `ROWS_SEED` is
another seed, which draws other cases.
"""

import inspect
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
from comparisons import paired
from conftest import Batch, gradients
from test_every_type import EXACT, outcome_of, written
from tiny_models import SIZES, TARGETS, batch_of, classes_of, tiny_model
from transformers import PreTrainedModel

# `batch_of` returns batches of this shape.
ROWS = 4
LENGTH = 20
# The largest difference of an output, relative to its largest value.
BOUND = 1e-5
PAD = SIZES["pad_token_id"]
# All tiny models have at least as many positions.
NUM_POSITIONS = 90
SEED = int(os.environ.get("ROWS_SEED", "0"))


def is_hit(probability: float, *shape: int) -> torch.Tensor:
    return torch.rand(shape) < probability


# Each of these functions draws which places of a batch `(ROWS, LENGTH)` are real.


def right() -> torch.Tensor:
    lengths = torch.randint(1, LENGTH + 1, (ROWS, 1))
    lengths[0] = torch.randint(1, LENGTH - 3, ())  # There is always some padding.
    return torch.arange(LENGTH) < lengths


def left() -> torch.Tensor:
    return right().flip(1)


def both_sides() -> torch.Tensor:
    """Some rows are padded on the right, one on the left, and one on both sides."""
    is_real = right()
    is_real[2] = left()[2]
    is_real[3] = right()[3] & left()[3]
    is_real[3, 9] = True
    return is_real


def holes() -> torch.Tensor:
    is_real = is_hit(0.6, ROWS, LENGTH)
    is_real[range(ROWS), torch.randint(LENGTH, (ROWS,))] = True
    return is_real


def empty_row() -> torch.Tensor:
    is_real = drawn((right, left))
    is_real[torch.randint(ROWS, ())] = False
    return is_real


def rows_of_one_token() -> torch.Tensor:
    """One such row has its token at the beginning, and another one anywhere."""
    is_real = right()
    is_real[:2] = False
    is_real[0, 0] = True
    is_real[1, torch.randint(LENGTH, ())] = True
    return is_real


def first_token_only() -> torch.Tensor:
    is_real = right()
    is_real[1, 1:] = False
    return is_real


def full() -> torch.Tensor:
    return torch.ones(ROWS, LENGTH, dtype=torch.bool)


def drawn(functions: tuple[Callable[[], torch.Tensor], ...]) -> torch.Tensor:
    return functions[int(torch.randint(len(functions), ()))]()


PADDED = (right, left, both_sides, holes)
ONLY_PAD = "only the pad id in a row"
PAIRS = "mask of four dimensions"
PACKED = "packed rows"
POSITIONS = "random positions"
KINDS: dict[str, tuple[Callable[[], torch.Tensor], ...]] = {
    "right": (right,),
    "left": (left,),
    "both sides": (both_sides,),
    "holes": (holes,),
    "empty row": (empty_row,),
    "rows of one token": (rows_of_one_token,),
    ONLY_PAD: (first_token_only,),
    "full": (full,),
    PAIRS: PADDED,
    PACKED: (full,),
    POSITIONS: PADDED,
}


@dataclass
class Case:
    """The arguments of a call, and the places of the source and of the logits that have a meaning.

    Both are the same unless the model is an encoder–decoder for language."""

    batch: Batch
    is_real: torch.Tensor
    is_target: torch.Tensor


def case_of(model: PreTrainedModel, kind: str, is_causal: bool) -> Case:
    torch.manual_seed(zlib.crc32(f"{SEED} {type(model).__name__} {kind}".encode()))
    is_real = drawn(KINDS[kind])
    example = batch_of(model)
    batch = {"input_ids": ids_of(is_real), "attention_mask": is_real.long()}
    if kind == ONLY_PAD:
        batch["input_ids"][1, 0] = PAD
    if "bbox" in example:
        batch["bbox"] = example["bbox"].view(ROWS, LENGTH, 4)
    if kind == PAIRS:
        # Without this, heads may read places to which no token attends.
        batch["input_ids"][~is_real] = PAD
        batch["attention_mask"] = pairs_of(model, is_real, is_causal)
    if kind == POSITIONS:
        batch["position_ids"] = torch.randint(NUM_POSITIONS, (ROWS, LENGTH))
    if kind == PACKED:
        del batch["attention_mask"]
        batch["position_ids"] = restarting_positions()
    if example["input_ids"].ndim == 3:
        batch = {name: value.unflatten(0, (2, 2)) for name, value in batch.items()}
    case = Case(batch=batch, is_real=is_real, is_target=is_real)
    for name in set(TARGETS) & set(example):
        batch[name] = example[name]
        if name != "labels":
            batch[name] = torch.randint(LENGTH, (ROWS,))
        elif example[name].ndim == 2:
            batch[name] = labels_of(model, is_real, is_causal)
            if model.config.is_encoder_decoder:
                case.is_target = batch[name] != -100
                # Some collators pass the target in addition to its labels.
                if takes(model, "decoder_input_ids") and is_hit(0.5):
                    batch["decoder_input_ids"] = ids_of(case.is_target)
    return case


def ids_of(is_real: torch.Tensor) -> torch.Tensor:
    """Random ids, some of which are the mask token. Each row ends with the end of a text."""
    ids = torch.randint(5, 110, (ROWS, LENGTH))
    ids[is_hit(0.1, ROWS, LENGTH)] = SIZES["mask_token_id"]
    last = (is_real * torch.arange(LENGTH)).argmax(1)
    ids[range(ROWS), last] = SIZES["eos_token_id"]
    # The mask decides what is padding, so that other ids may stay there.
    if is_hit(0.5):
        ids[~is_real] = PAD
    return ids


def labels_of(model: PreTrainedModel, is_real: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Random labels. Some tokens have none, and sometimes padding has one."""
    labels = torch.randint(5, 110, (ROWS, LENGTH))
    if "ForTokenClassification" in type(model).__name__:
        labels %= 2
    is_labelled = is_hit(0.6, ROWS, LENGTH)
    if model.config.is_encoder_decoder:
        # A target has other lengths than its source, and may have gaps.
        has_gaps = is_hit(0.5)
        return labels.masked_fill(~right() | (has_gaps & ~is_labelled), -100)
    if is_hit(0.7):
        is_labelled &= is_real
    # In a causal model, places before the first token attend to nothing, and have no meaning.
    if is_causal:
        has_meaning = is_real.cummax(1).values
        is_labelled &= has_meaning
        is_labelled[:, 1:] &= has_meaning[:, :-1]
    return labels.masked_fill(~is_labelled, -100)


def pairs_of(model: PreTrainedModel, is_real: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """A mask `(ROWS, 1, LENGTH, LENGTH)`."""
    pairs = is_real[:, None, None].expand(-1, -1, LENGTH, -1)
    if is_causal:
        pairs = pairs.tril()
    if model.config._attn_implementation != "eager":
        return pairs.clone()
    # Eager attention adds the mask to the scores.
    return torch.zeros(pairs.shape).masked_fill(~pairs, torch.finfo(torch.float32).min)


def restarting_positions() -> torch.Tensor:
    places = torch.arange(LENGTH).expand(ROWS, -1)
    starts = (places * is_hit(0.2, ROWS, LENGTH)).cummax(1).values
    return places - starts


def has_causal_attention(model: PreTrainedModel) -> bool:
    """Whether a change of the last token leaves the state of the first token as it was."""
    ids = batch_of(model)["input_ids"].view(ROWS, LENGTH)[:1]
    others = ids.clone()
    others[0, -1] += 1
    # A model that cannot be called with ids alone is not causal.
    with torch.no_grad(), suppress(Exception):
        one, other = (model.base_model(each)[0][:, 0] for each in (ids, others))
        return torch.allclose(one, other, atol=1e-5)
    return False


def kinds_for(model: PreTrainedModel, is_causal: bool) -> list[str]:
    kinds = list(KINDS)
    if not takes(model, "position_ids"):
        kinds.remove(POSITIONS)
        kinds.remove(PACKED)
    elif not is_causal or model.config.is_encoder_decoder:
        kinds.remove(PACKED)
    return kinds


def takes(model: PreTrainedModel, name: str) -> bool:
    return name in inspect.signature(type(model).forward).parameters


def outputs_of(model: PreTrainedModel, case: Case) -> Batch:
    """The loss in training, all gradients, and the outputs of an evaluation where they have a
    meaning."""
    outputs = {}
    batch: dict = dict(case.batch)
    # A stock model separates the documents of packed rows only without a cache.
    if "attention_mask" not in batch and takes(model, "use_cache"):
        batch["use_cache"] = False
    torch.manual_seed(0)
    if set(TARGETS) & set(batch):
        outputs["loss in training"], outputs["gradients"] = gradients(model, batch)
    with torch.no_grad():
        found = model.eval()(**batch)
    for name, value in found.items():
        if isinstance(value, torch.Tensor):
            places = case.is_real if name.startswith("encoder") else case.is_target
            outputs[name] = value[places] if value.shape[:2] == places.shape else value
    return outputs


def difference_of(found: Batch, expected: Batch) -> tuple[float, str]:
    """The largest relative difference, and the name of its output."""
    differences = [(0.0, "")]
    for name, value in expected.items():
        other = found.get(name)
        if other is None or other.shape != value.shape:
            differences.append((float("inf"), f"shape of {name}"))
        elif value.numel():
            # Gradients may be nothing but rounded zeros.
            size = value.abs().max().clamp(min=1e-3)
            difference = (other - value).abs().max() / size
            differences.append((float(difference.nan_to_num(nan=float("inf"))), name))
    return max(differences)


class Pair:
    """A stock model and its padding-free copy."""

    def __init__(self, model_class: type[PreTrainedModel], kind: str, dtype: torch.dtype):
        self.names = (model_class, kind)
        self.stock, self.free = paired(tiny_model(kind, model_class).to(dtype))

    @cached_property
    def in_double_precision(self) -> "Pair | None":
        # Some models cannot be computed in float64. Then their result in float32 counts.
        with suppress(Exception):
            return Pair(*self.names, dtype=torch.float64)
        return None

    def compare(self, case: Case) -> tuple[float, str] | None:
        """The largest difference and its output, or None if the stock model has no result."""
        try:
            expected = outputs_of(self.stock, case)
        except Exception:
            return None
        if not all(bool(value.isfinite().all()) for value in expected.values()):
            return None
        try:
            result = difference_of(outputs_of(self.free, case), expected)
        except Exception as error:
            result = (float("inf"), f"{type(error).__name__}: {error}".partition("\n")[0])
        # Rounding in float32 may exceed the bound, so double precision decides.
        is_exact = result[0] <= BOUND or self.stock.dtype == torch.float64
        precise = None if is_exact else self.in_double_precision
        return (precise and precise.compare(case)) or result


TYPES = [kind for kind, (_, result) in written().items() if outcome_of(result) == EXACT]
FAST = "bert bloom deberta-v2 gpt2 llama marian modernbert umt5".split()
ITEMS = [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in TYPES]


@pytest.mark.parametrize("model_type", ITEMS)
def test_rows_of_every_kind(model_type):
    """A case of each kind is compared for each class of a type, unless the stock model cannot
    compute it."""
    num_compared = 0
    wrong = []
    for model_class in classes_of(model_type):
        pair = Pair(model_class, model_type, dtype=torch.float32)
        is_causal = has_causal_attention(pair.stock)
        for kind in kinds_for(pair.stock, is_causal):
            result = pair.compare(case_of(pair.stock, kind, is_causal))
            if result is None:
                continue
            num_compared += 1
            difference, output = result
            if difference > BOUND:
                wrong.append(f"{model_class.__name__}, {kind}: {difference:.0e} ({output})")
    assert not wrong, "\n".join(wrong)
    assert num_compared > 0
