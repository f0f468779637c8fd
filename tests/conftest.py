"""Tiny models that the tests share. They cover every option that changes how hidden states flow."""

import gc
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

# Scripts that tests start in processes of their own import modules of this folder.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Results must not depend on where in memory a weight happens to lie.
os.environ.setdefault("MKL_CBWR", "AUTO")
# Tiny models lose more time to further threads than they gain.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import yaml
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig

ROOT = Path(__file__).parent.parent
# The folders of libraries, for processes that start without them.
LIBRARIES = [path for path in sys.path if path.endswith("-packages")]
VOCAB = 99
# Arguments of a model by their names.
Batch = dict[str, torch.Tensor]
# Two ways to compute the same numbers in float32 may differ by this much.
CLOSE = {"rtol": 0, "atol": 1e-5}
assert_close = partial(torch.testing.assert_close, **CLOSE)
assert_equal = partial(assert_close, atol=0)


def data_beside(file: str) -> Any:
    """The content of the YAML file with the name of a module."""
    return yaml.safe_load(Path(file).with_suffix(".yaml").read_text("utf-8"))


FIELDS = data_beside(__file__)
STACKS: dict[str, dict] = FIELDS["stacks"]
STYLES: dict[str, dict] = FIELDS["styles"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest file, so that no process waits for it at the end."""
    items.sort(key=lambda item: item.path.name != "test_pages.py")


def pytest_collection_finish() -> None:
    """Exclude everything that is imported by now from garbage collection.

    These objects stay until the end, and every training would look through them twice, which takes
    longer than the tiny training itself."""
    gc.collect()
    gc.freeze()


def stack_config(
    name: str = "default", backend: str = "padding_free", **fields
) -> RoFormerLiteConfig:
    """A tiny config of `STACKS` or `STYLES`."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "hidden_dropout": 0.0,
        "max_position_embeddings": 64,
    }
    stacks = {**STACKS, **STYLES}
    config = RoFormerLiteConfig(**{**sizes, **stacks[name], **fields})
    config._attn_implementation = backend
    return config


def seq2seq_config(
    name: str = "default", backend: str = "padding_free", **fields
) -> RoFormerLiteSeq2SeqConfig:
    """A tiny encoder–decoder of two different stacks. `name` chooses the stack of the decoder."""
    encoder = stack_config(hidden_size=24, num_hidden_layers=1, vocab_size=VOCAB + 2)
    config = RoFormerLiteSeq2SeqConfig(encoder=encoder, decoder=stack_config(name), **fields)
    config._attn_implementation = backend
    return config


def build(model_class: type[PreTrainedModel], config) -> PreTrainedModel:
    """A model with seeded weights, large enough that differences show."""
    torch.manual_seed(0)
    config.initializer_range = 0.2
    for side in ("encoder", "decoder"):
        if hasattr(config, side):
            getattr(config, side).initializer_range = 0.2
    return model_class(config).eval()


def dropout_without_chance(states, p=0.5, training=True, inplace=False):
    """Stands in for dropout: the factor is its probability of keeping a number."""
    return states * (1 - p) if training else states


@torch.no_grad()
def noisy(model: PreTrainedModel) -> PreTrainedModel:
    """Add noise to `model`, so that no bias is zero and no gain is one, and return it. A tensor in
    a wrong place then shows."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def random_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def mask_of(lengths: Sequence[int], length: int | None = None) -> torch.Tensor:
    """The attention mask of texts of these lengths, which are padded on the right."""
    return (torch.arange(length or max(lengths)) < torch.tensor(lengths)[:, None]).long()


def positions_of(lengths: Sequence[int]) -> torch.Tensor:
    """The positions of documents of these lengths, which are packed in one row."""
    return torch.cat([torch.arange(length) for length in lengths])[None]


def part_of(tensors: Batch, prefix: str) -> Batch:
    """The tensors whose names have a prefix, by their names without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def gradients(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss in training, and all gradients."""
    model.train().zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients_of(model)])


@pytest.fixture
def current_folder(tmp_path, monkeypatch) -> Path:
    """An empty folder in which the test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture
def ragged_input(generator) -> Batch:
    """Six rows with masks of every kind: full, padded on the right, padded on the left, with holes,
    of one token, and of no token."""
    mask = torch.ones(6, 17, dtype=torch.long)
    mask[1, 9:] = 0
    mask[2, :6] = 0
    mask[3] = (torch.rand(17, generator=generator) > 0.5).long()
    mask[4] = 0
    mask[4, 5] = 1
    mask[5] = 0
    return {
        "input_ids": torch.randint(5, VOCAB, (6, 17), generator=generator),
        "attention_mask": mask,
    }


def packed_forms(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, list[Batch]]:
    """The real tokens of a batch as one row `(1, N)`, and the two forms of arguments that say where
    its documents begin."""
    lengths = torch.tensor([length for length in mask.sum(1).tolist() if length])
    borders = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    form = {"position_ids": positions_of(lengths)}
    packing = {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders}
    return ids[mask.bool()][None], [form, form | packing]
