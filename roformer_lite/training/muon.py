"""Muon for the matrices inside the layers, AdamW for all other weights: `--optim muon`."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import TrainingArguments

# The name of the optimizer in `--optim`.
MUON = "muon"


class MuonWithAdamW(Optimizer):
    """torch's `Muon` and `AdamW` as one optimizer, with the groups of both and one state.

    Muon orthogonalises the update of a matrix, so that all its directions learn at the same rate
    (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/). This suits the matrices
    between hidden states. Embeddings, output layers, norms and biases are left to AdamW.

    Args:
        matrices: Weights with two dimensions, for Muon.
        others: Groups of all other weights, for AdamW.
        muon: Further arguments of `Muon`.
        adamw: Further arguments of `AdamW`.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[dict[str, Any]],
        muon: dict[str, Any],
        adamw: dict[str, Any],
    ):
        self._adamw = AdamW(others, **adamw)
        self._muon = Muon(matrices, **muon)
        # A schedule with polynomial decay reads the learning rate from the defaults.
        defaults = {"lr": self._adamw.defaults["lr"]}
        super().__init__([*self._adamw.param_groups, *self._muon.param_groups], defaults)
        self._share()

    def _share(self) -> None:
        """Let both parts share the groups and the state of the whole optimizer, because schedulers
        and checkpoints change these."""
        self._adamw.param_groups = self.param_groups[:-1]
        self._muon.param_groups = self.param_groups[-1:]
        self._adamw.state = self.state
        self._muon.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def step(self, closure: Any = None) -> Any:
        loss = self._adamw.step(closure)
        self._muon.step()
        return loss


def make_muon(model: nn.Module, args: TrainingArguments, decayed: Iterable[str]) -> MuonWithAdamW:
    """The optimizer of `--optim muon`.

    The updates of Muon are scaled to the size of AdamW's updates (Liu et al. 2025,
    arXiv:2502.16982, section 2.2), so that one learning rate suits both.

    Args:
        model: The model, or a wrapper of it, with layers in module lists.
        args: The learning rate, the weight decay and the arguments of AdamW.
        decayed: Names of the weights with weight decay.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    in_layers = {weight for part in layers for weight in part.parameters()}
    decays = set(decayed)
    matrices: list[nn.Parameter] = []
    with_decay: list[nn.Parameter] = []
    without_decay: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        if weight in in_layers and weight.ndim == 2:
            matrices.append(weight)
        elif name in decays:
            with_decay.append(weight)
        else:
            without_decay.append(weight)
    others = [
        {"params": with_decay, "weight_decay": args.weight_decay},
        {"params": without_decay, "weight_decay": 0.0},
    ]
    muon = {
        "lr": args.learning_rate,
        "weight_decay": args.weight_decay,
        "adjust_lr_fn": "match_rms_adamw",
    }
    adamw = {
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
        "fused": True,
    }
    return MuonWithAdamW(matrices, others, muon, adamw)
