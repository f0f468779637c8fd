"""Helpers to load models that former versions saved, and the inputs and outputs saved with them."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

import hf_roformer_lite

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
TOLERANCE_OF_GRADIENTS = {"rtol": 2e-5, "atol": 2e-5}


def load(folder: Path) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """Load the model of a folder, and the tensors that were saved with it."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    model_class = getattr(hf_roformer_lite, config["architectures"][0])
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval(), load_file(folder / "outputs.safetensors")


def part(kept: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Select the tensors whose names have a prefix, and remove the prefix from their names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in kept.items()
        if name.startswith(prefix)
    }


def in_float64(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        key: value.double() if value.is_floating_point() else value for key, value in inputs.items()
    }


def norms_and_projections(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Represent the gradient of each weight by two numbers, its norm and a projection."""
    found = {}
    for name, weight in model.named_parameters():
        gradient = torch.zeros(1).double() if weight.grad is None else weight.grad
        flat = gradient.flatten()
        projection = (flat * torch.cos(torch.arange(len(flat), dtype=torch.float64))).sum()
        found[name] = torch.stack((flat.norm(), projection)).float()
    return found
