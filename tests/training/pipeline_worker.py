"""`torchrun pipeline_worker.py`: the layers of one model in two processes, by torch.distributed.pipelining."""

import torch
import torch.distributed as dist
from conftest import VOCAB, build, stack_config
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from hf_roformer_lite import RoFormerLiteModel

ROWS, LENGTH, MICRO_BATCHES = 6, 17, 3


def loss(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Of the states of real tokens."""
    return (states * mask[..., None]).square().sum()


class HalfOfTheLayers(nn.Module):
    """One stage. It takes ids, or the hidden states of the stage before, `(B, L, hidden)`; beside it the mask."""

    def __init__(self, model: RoFormerLiteModel, rank: int):
        super().__init__()
        self.model, self.is_first = model, rank == 0
        half = len(model.layers) // 2
        model.layers = model.layers[:half] if self.is_first else model.layers[half:]
        if self.is_first:
            model.final_norm = nn.Identity()

    def forward(self, states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            return self.model(input_ids=states, attention_mask=attention_mask).last_hidden_state
        ids = torch.zeros(attention_mask.shape, dtype=torch.long)  # only their shape is looked at
        layout = self.model.lay_out(input_ids=ids, attention_mask=attention_mask)
        states = layout.tokens.gather(states)  # (N, hidden)
        tables = self.model._rotary_tables(states, layout)
        for layer in self.model.layers:
            states = layer(states, layout=layout, **tables[layer.layer_type], **layout.attention_options)
        return layout.tokens.restore(self.model.final_norm(states))


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, `(B, L)`, of rows of different lengths."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(3, LENGTH + 1, (ROWS, 1), generator=generator)
    return torch.randint(5, VOCAB, (ROWS, LENGTH), generator=generator), (torch.arange(LENGTH) < lengths).long()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ids, mask = inputs()
    whole = build(RoFormerLiteModel, stack_config(num_hidden_layers=4)).train()
    wanted = whole(input_ids=ids, attention_mask=mask).last_hidden_state
    (loss(wanted, mask) / MICRO_BATCHES).backward()  # as a schedule divides gradients

    half = HalfOfTheLayers(build(RoFormerLiteModel, stack_config(num_hidden_layers=4)).train(), rank)
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=loss)
    if rank == 0:
        schedule.step(ids, attention_mask=mask)
    else:
        got = schedule.step(target=mask, attention_mask=mask)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)
    places = range(2) if rank == 0 else range(2, 4)
    for layer, place in zip(half.model.layers, places, strict=True):
        gradients = [weight.grad for weight in layer.parameters()]
        torch.testing.assert_close(
            gradients, [weight.grad for weight in whole.layers[place].parameters()], rtol=1e-4, atol=1e-4
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
