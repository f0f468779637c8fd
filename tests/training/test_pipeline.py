"""`base_model_pp_plan` names parts that there are, and by these parts two processes share the layers of a model."""

import pytest
from conftest import STACKS, STYLES, build, stack_config
from test_distributed import run_in_two
from transformers.distributed import DistributedConfig

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteModel


@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_plan_names_the_parts_of_the_model(name):
    model = build(RoFormerLiteModel, stack_config(name))
    parts = [part for part, _ in model.named_children() if part not in ("rotary_emb", "pooler")]
    assert list(model.pp_plan) == [part for part in parts if part != "final_norm" or model.config.final_norm]
    outputs = [returned for _, returned in model.pp_plan.values()]
    taken = [takes[0] for takes, _ in model.pp_plan.values()]
    assert all([first] == before for first, before in zip(taken[1:], outputs, strict=False))


def test_plan_of_a_model_with_a_head():
    model = build(RoFormerLiteForCausalLM, stack_config())
    assert {name.partition(".")[0] for name in model.pp_plan} == {model.base_model_prefix}
    assert all(model.get_submodule(name) is not None for name in model.pp_plan)


def test_pipelines_of_transformers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="pp_size=2.*torch.distributed.pipelining"):
        RoFormerLiteModel.maybe_distribute_model(None, DistributedConfig(pp_size=2), None)


@pytest.mark.slow
def test_two_stages_equal_the_whole(tmp_path):
    """Outputs and gradients; the worker compares."""
    run_in_two("pipeline_worker.py", tmp_path)
