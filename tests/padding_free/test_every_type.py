"""After `padding_free`, every text model of transformers has the same outputs, or it is refused.

`PYTHONPATH=tests python tests/padding_free/test_every_type.py [TYPES]` measures again, and writes
`every_type.csv` and the page `docs/padding_free_models.md`.
"""

import csv
import re
import sys
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from comparisons import assert_close, gradients
from conftest import Batch, data_beside
from tiny_models import (
    TABLES,
    TARGETS,
    batch_of,
    class_of,
    classes_of,
    tiny_model,
)
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import ModelOutput

from hf_roformer_lite.padding_free import padding_free

RESULTS = Path(__file__).with_name("every_type.csv")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "padding_free_models.md"
EXACT = "supported"
TAKES_MORE = "needs inputs other than text"
INTRODUCTION = """# All text models

This page lists every text model type in transformers 5.24, and whether
[`padding_free`](padding_free.md) supports it. A type is supported if a small random model of each
of its classes, one of which is named, computes the same logits, losses and gradients with and
without padding. The column *largest difference* has the largest difference divided by the largest
value, for texts of 20, 13, 6 and 1 tokens. At most 1e-5 is allowed. For any other type,
`padding_free` raises a `PaddingFreeError` with the reason, and leaves the model as it was.

On the website, the box below the name of a column filters the long table by this column, for
example by `bert` or `no`. The same rows are in the file `tests/padding_free/every_type.csv`.

"""
# These types are in no other table, and read text. Other such types read sound.
SEQ2SEQ_TYPES = set(
    "blenderbot blenderbot-small fsmt led longt5 m2m_100 mvp nllb-moe pegasus pegasus_x plbart "
    "switch_transformers".split()
)
TYPES = sorted(kind for kind in SEQ2SEQ_TYPES.union(*TABLES[:-1]) if kind in CONFIG_MAPPING_NAMES)
FAST = set(
    "albert bert distilbert electra eurobert gemma3_text gpt2 llama mamba modernbert nomic_bert "
    "opt qwen3 roberta mobilebert gemma2 gpt_oss lfm2 marian".split()
)
# Types that cannot be run or trained with a batch that has only text; the words by which the page
# describes the errors; and the linear maps that compute padding, as regular expressions.
NOT_TEXT, REASONS, PADDED_MAPS = data_beside(__file__).values()
PRODUCTS = (torch.nn.functional.linear, torch.addmm, torch.matmul, torch.Tensor.__matmul__)


def outputs_of(model: PreTrainedModel, batch: Batch) -> list[torch.Tensor]:
    """The outputs by which two models are compared, at real tokens or for whole rows.

    They are the logits of the batch and of a full row; the logits of the token after that row, if
    the model can generate; the states of all layers; the loss in training, and all gradients."""
    full = {
        name: value[:1] for name, value in batch.items() if name not in (*TARGETS, "attention_mask")
    }
    if model.config.is_encoder_decoder:
        full["decoder_input_ids"] = full["input_ids"]
    with torch.no_grad():
        found = model.eval()(**batch)
        whole = model(**full)
    names = [
        name for name in found if name.endswith("logits") and isinstance(found[name], torch.Tensor)
    ]
    outputs = [found[name] for name in names]
    outputs += [whole[name] for name in names if name in whole]
    outputs += logits_of_next_token(model, full["input_ids"], whole)
    outputs += states_of_layers(model, batch)
    if set(TARGETS) & set(batch):
        outputs += gradients(model, batch)
    real = batch["attention_mask"] != 0
    if model.config.is_encoder_decoder and "labels" in batch:
        real = batch["labels"] != -100
    return [value[real] if value.shape[:2] == real.shape else value for value in outputs]


def logits_of_next_token(
    model: PreTrainedModel, ids: torch.Tensor, whole: ModelOutput
) -> list[torch.Tensor]:
    """The logits of one more token after `whole`, the output of a full row with its cache."""
    # Some models have no cache, or cannot go on from it like this.
    with torch.no_grad(), suppress(Exception):
        cache = whole.get("cache", whole.get("past_key_values"))
        return [model(ids[:, :1], past_key_values=cache).logits]
    return []


def states_of_layers(model: PreTrainedModel, batch: Batch) -> list[torch.Tensor]:
    # Some models have no states of layers.
    with torch.no_grad(), suppress(TypeError):
        states = model(**batch, output_hidden_states=True).get("hidden_states") or ()
        return [state for state in states if isinstance(state, torch.Tensor)]
    return []


class CountedRows(TorchFunctionMode):
    """Counts the rows that each linear map of a model computes; `most` has the largest number for
    each weight."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.names = {id(weight): name for name, weight in model.named_parameters()}
        self.most: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        for weight in args[1:3]:
            if func in PRODUCTS and id(weight) in self.names:
                name = re.sub(r"\d+", "#", self.names[id(weight)])
                rows = output.shape[:-1].numel()
                self.most[name] = max(self.most[name], rows)
        return output


def faults_of_maps(kind: str, model: PreTrainedModel, batch: Batch) -> list[str]:
    """The linear maps that compute padding, except those that are known to, in training and in
    evaluation."""
    with CountedRows(model) as counted:
        model.train()(**batch)
        with torch.no_grad():
            model.eval()(**batch)
    assert counted.most
    num_tokens = int(batch["attention_mask"].sum())
    # The heads of language models have up to two more rows.
    padded = [name for name, rows in counted.most.items() if rows > num_tokens + 2]
    names = [f"{kind} {type(model).__name__} {name}" for name in padded]
    return [name for name in names if not any(re.match(known, name) for known in PADDED_MAPS)]


def result_of(kind: str) -> str:
    """The result of the first class of a type, or the worst of all classes if this is exact."""
    first = result_of_class(kind, class_of(kind))
    if not first.startswith("exact"):
        return first
    results = {head.__name__: result_of_class(kind, head) for head in classes_of(kind)[1:]}
    results[class_of(kind).__name__] = first
    for name, result in results.items():
        if result.startswith("refused"):
            return f"refused: {name}, as {result.partition(': ')[2]}"
        if not result.startswith("exact"):
            return f"differs: {name} {result}"
    return max(results.values(), key=lambda result: float(result.partition(": ")[2]))


def result_of_class(
    kind: str, model_class: type[PreTrainedModel], dtype: torch.dtype = torch.float32
) -> str:
    if kind in NOT_TEXT:
        return f"not text: {NOT_TEXT[kind]}"
    try:
        model = tiny_model(kind, model_class).to(dtype)
    except NotImplementedError as error:
        return f"not built: {error}"
    batch = batch_of(model)
    expected = outputs_of(model, batch)
    try:
        padding_free(model)
    except ValueError as error:
        # The refused model must be left as it was.
        assert_close(outputs_of(model, batch), expected, atol=1e-6)
        return f"refused: {str(error).partition('padding-free: ')[2]}"
    worst = max(
        float((found - value).abs().max() / value.abs().max().clamp(min=1))
        for found, value in zip(outputs_of(model, batch), expected, strict=True)
    )
    if faults := faults_of_maps(kind, model, batch):
        return f"differs: padding is computed by {faults}"
    # Rounding in float32 may move gradients as far as this, so double precision decides.
    if worst > 1e-5 and dtype == torch.float32:
        return result_of_class(kind, model_class, torch.float64)
    return f"exact: {worst:.0e}" if worst <= 1e-5 else f"differs: {worst:.0e}"


def written() -> dict[str, tuple[str, str]]:
    """The class and the result of each type from the last measurement."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return {row["type"]: (row["class"], row["result"]) for row in csv.DictReader(file)}


def page_of(results: dict[str, tuple[str, str]]) -> str:
    """The text of the page: the number of types of each outcome, and a table of all types."""
    outcomes = {kind: outcome_of(result) for kind, (_, result) in results.items()}
    counts = Counter(outcomes.values())
    names = [EXACT, *REASONS.values(), TAKES_MORE]
    lines = [f"| {name} | {counts[name]} |" for name in names if counts[name]]
    rows = []
    for kind, (class_name, result) in results.items():
        outcome = outcomes[kind]
        difference = result.partition(": ")[2]
        supported = f"yes | {difference} | " if outcome == EXACT else f"no | | {outcome}"
        rows.append(f"| `{kind}` | `{class_name}` | {supported} |")
    outcomes_table = ["| result | types |", "|---|---:|", *lines, ""]
    head = ["| `model_type` | class | supported | largest difference | reason |"]
    types_table = ["## All types", "", *head, "|---|---|---|---:|---|", *rows, ""]
    return INTRODUCTION + "\n".join([*outcomes_table, *types_table])


def outcome_of(result: str) -> str:
    kind = result.partition(":")[0]
    if kind != "refused":
        return {"exact": EXACT, "not text": TAKES_MORE}[kind]
    return next(name for pattern, name in REASONS.items() if re.search(pattern, result))


def test_every_type_was_measured():
    assert set(written()) == set(TYPES)
    kinds = {result.partition(":")[0] for _, result in written().values()}
    assert kinds == {"exact", "refused", "not text"}


def test_the_page_lists_what_was_measured():
    assert PAGE.read_text("utf-8") == page_of(written())


ITEMS = [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in TYPES]


@pytest.mark.parametrize("kind", ITEMS)
def test_exact_or_refused(kind):
    result = result_of(kind)
    assert result.partition(":")[0] == written()[kind][1].partition(":")[0], result


def main() -> None:
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    results = {kind: written().get(kind) for kind in TYPES}
    chosen = sys.argv[1:] or TYPES
    for kind, known in results.items():
        if known is None or kind in chosen:
            results[kind] = (class_of(kind).__name__, result_of(kind)[:160].strip())
            print(kind, *results[kind], flush=True)
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("type", "class", "result"))
        writer.writerows((kind, *result) for kind, result in results.items())
    PAGE.write_text(page_of(results), "utf-8")


if __name__ == "__main__":
    main()
