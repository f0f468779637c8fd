"""Muon for the matrices inside the layers, AdamW for all other weights: `--optim muon`."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import AdamW, Muon, Optimizer

# The name of the optimizer in `--optim`.
MUON = "muon"


class MuonWithAdamW(Optimizer):
    """torch's `Muon` and `AdamW` as one optimizer, with the groups of both and one state.

    Muon orthogonalises the update of a matrix, so that all its directions learn at the same rate
    (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/). This suits the matrices
    between hidden states. Embeddings, output layers, norms and biases are left to AdamW.

    Args:
        adamw: The optimizer of all other weights.
        matrices: Weights with two dimensions, for Muon.
        **muon: Further arguments of `Muon`.
    """

    def __init__(self, adamw: AdamW, matrices: Iterable[nn.Parameter], **muon: Any):
        self._adamw = adamw
        self._muon = Muon(matrices, **muon)
        # A schedule with polynomial decay reads the learning rate from the defaults.
        defaults = {"lr": adamw.defaults["lr"]}
        super().__init__([*adamw.param_groups, *self._muon.param_groups], defaults)
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


def with_muon(adamw: AdamW, model: nn.Module) -> MuonWithAdamW:
    """The optimizer of `--optim muon`, made from the one of the Trainer.

    The updates of Muon are scaled to the size of AdamW's updates (Liu et al. 2025,
    arXiv:2502.16982, section 2.2), so that one learning rate suits both.

    Args:
        adamw: The Trainer's optimizer of all weights. Its first group has the weights with decay.
            It loses the matrices.
        model: The model, or a wrapper of it, with layers in module lists.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    in_layers = {weight for part in layers for weight in part.parameters()}

    def is_matrix(weight: nn.Parameter) -> bool:
        return weight in in_layers and weight.ndim == 2

    matrices: list[nn.Parameter] = []
    for group in adamw.param_groups:
        matrices += filter(is_matrix, group["params"])
        group["params"] = [weight for weight in group["params"] if not is_matrix(weight)]
    return MuonWithAdamW(
        adamw,
        matrices,
        lr=adamw.defaults["lr"],
        weight_decay=adamw.param_groups[0]["weight_decay"],
        adjust_lr_fn="match_rms_adamw",
    )
