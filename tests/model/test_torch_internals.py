"""A torch that lacks one of the private names we read: slower perhaps, but the same numbers."""

import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT
from torch import nn

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMaskedLM

pytestmark = pytest.mark.slow

NAMES = [
    "_has_any_global_hook",
    "_are_functorch_transforms_active",
    "_current_level",
    "_linear_pointwise",
    "_forward_hooks|_forward_pre_hooks|_backward_hooks|_backward_pre_hooks",
]

# torch itself goes on using its names: they are hidden from whoever asks whether they are there.
HIDE = """
import builtins, sys
find, hidden = builtins.getattr, sys.argv[1].split("|")
builtins.getattr = lambda holder, name, *default: (
    default[0] if default and name in hidden else find(holder, name, *default)
)
import torch
from test_torch_internals import results
torch.save(results(), sys.argv[2])
"""


def results() -> dict[str, torch.Tensor]:
    """Outputs, loss and gradients of a model whose products are large enough for a choice of library."""
    torch.manual_seed(0)
    config = RoFormerLiteConfig.from_preset("mini", vocab_size=1000, num_hidden_layers=1, hidden_dropout=0.0)
    model = RoFormerLiteForMaskedLM(config).eval()
    ids = torch.randint(5, 1000, (16, 64))
    mask = torch.ones_like(ids)
    mask[3, 20:] = 0
    with torch.no_grad():
        found = {"logits": model(ids, mask).logits, "few": model(ids[:1, :6]).logits}
    loss = model.train()(ids, mask, labels=ids.masked_fill(mask == 0, -100)).loss
    loss.backward()
    tangent = torch.func.jvp(nn.Linear.forward.__get__(model.lm_head), (torch.ones(2, 256),), (torch.ones(2, 256),))
    found |= {"loss": loss.detach(), "tangent": tangent[1].detach()}
    return found | {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return results()


@pytest.mark.parametrize("name", NAMES)
def test_without(name, expected, tmp_path):
    environment = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'tests' / 'model'}", "PATH": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HIDE, name, tmp_path / "results.pt"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "results.pt")
    assert found.keys() == expected.keys()
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


def test_one_file_reads_them():
    """Nobody else reads a private name of torch, under any of its names here."""
    private = re.compile(r"\b(?:torch(?:\.\w+)*|forward_ad|nn_module|nn|F)\._[a-z]\w*|import _[a-z]\w*")
    ours = re.compile(rf"\b({'|'.join(NAMES)})\b")
    for path in (ROOT / "hf_roformer_lite").rglob("*.py"):
        if path.name not in ("torch_internals.py", "stock_choices.py"):  # the latter names a module, in a `try`
            code = path.read_text("utf-8")
            assert not private.findall(code) and not ours.findall(code), path
