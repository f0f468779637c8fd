"""Adapters of PEFT find their default targets, get gradients, and are saved and merged."""

import peft
import pytest
import torch
from conftest import STACKS, STYLES, assert_close, assert_equal, build, seq2seq_config, stack_config
from peft import IA3Config, LNTuningConfig, LoraConfig, PrefixTuningConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

import hf_roformer_lite as rl

IDS = torch.tensor([[2, 17, 33, 90, 3], [2, 45, 3, 0, 0], [2, 8, 9, 3, 0], [2, 70, 71, 72, 3]])
MASK = (IDS > 0).long()
TASKS = {
    "SEQ_CLS": (rl.RoFormerLiteForSequenceClassification, AutoModelForSequenceClassification),
    "CAUSAL_LM": (rl.RoFormerLiteForCausalLM, AutoModelForCausalLM),
    "SEQ_2_SEQ_LM": (rl.RoFormerLiteForConditionalGeneration, AutoModelForSeq2SeqLM),
}
METHODS = {
    "lora": (LoraConfig, {"init_lora_weights": False, "r": 4}),
    "ia3": (IA3Config, {"init_ia3_weights": False}),
}


def base_model(task: str):
    config = seq2seq_config() if task == "SEQ_2_SEQ_LM" else stack_config(num_labels=4)
    return build(TASKS[task][0], config)


def inputs_for(task: str) -> dict[str, torch.Tensor]:
    labels = torch.arange(4) if task == "SEQ_CLS" else IDS.masked_fill(MASK == 0, -100)
    return {"input_ids": IDS, "attention_mask": MASK, "labels": labels}


def logits_of(model, task: str) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**inputs_for(task)).logits


TARGETS = {"lora": ("q_proj", "v_proj"), "ia3": ("k_proj", "v_proj", "down_proj")}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", TASKS)
def test_adapters_are_saved_and_merged(task, method, tmp_path):
    model_class, auto_class = TASKS[task]
    base_model(task).save_pretrained(tmp_path / "base")
    base = auto_class.from_pretrained(tmp_path / "base").eval()
    plain = logits_of(base, task)
    names = [name for name, _ in base.named_modules()]
    expected_layers = {name for name in names if name.split(".")[-1] in TARGETS[method]}
    config_class, options = METHODS[method]
    torch.manual_seed(1)
    model = get_peft_model(base, config_class(task_type=task, **options))
    assert set(model.targeted_module_names) == expected_layers and len(expected_layers) >= 4

    adapted = logits_of(model, task)
    assert (adapted - plain).abs().max() > 0.1
    # The saved adapter names the base model, which is loaded with it.
    model.save_pretrained(tmp_path / "adapter")
    options = {"num_labels": 4} if task == "SEQ_CLS" else {}
    name = f"AutoPeft{auto_class.__name__.removeprefix('Auto')}"
    for opener in (getattr(peft, name), auto_class):
        again = opener.from_pretrained(tmp_path / "adapter", **options)
        assert_close(logits_of(again, task), adapted)
    with model.disable_adapter():
        assert_equal(logits_of(model, task), plain)
    # PEFT can unload IA³ only if the classifier is a single linear layer, which ours is not.
    if (task, method) == ("SEQ_CLS", "ia3"):
        model.merge_adapter()
        merged = model
    else:
        merged = model.merge_and_unload()
        assert type(merged) is model_class
        merged.save_pretrained(tmp_path / "merged")
        merged = auto_class.from_pretrained(tmp_path / "merged")
    assert_close(logits_of(merged, task), adapted)


@pytest.mark.parametrize("stack", [*STACKS, *STYLES])
def test_no_layer_reads_its_weight_past_the_adapter(stack):
    """Every linear layer and every table has an adapter, embeddings and LM head included, and each
    adapter gets its part of the gradient."""
    models = [build(rl.RoFormerLiteForMaskedLM, stack_config(stack, tie_word_embeddings=False))]
    if stack in STACKS:
        config = seq2seq_config(stack, tie_word_embeddings=False)
        models.append(build(rl.RoFormerLiteForConditionalGeneration, config))
    for base in models:
        kinds = (torch.nn.Linear, torch.nn.Embedding)
        targets = [name for name, module in base.named_modules() if isinstance(module, kinds)]
        model = get_peft_model(
            base, LoraConfig(r=2, init_lora_weights=False, target_modules=targets)
        )
        assert set(model.targeted_module_names) == set(targets)
        assert any("lm_head" in name for name in targets)
        # Training predicts only labelled tokens, and evaluation predicts all of them.
        for mode in (model.train(), model.eval()):
            mode.zero_grad()
            mode(**inputs_for("MLM")).loss.backward()
            for name, parameter in mode.named_parameters():
                assert not parameter.requires_grad or parameter.grad.abs().max() > 0, name


def test_norms_are_found_under_their_own_names():
    model = get_peft_model(base_model("SEQ_2_SEQ_LM"), LNTuningConfig(task_type="SEQ_2_SEQ_LM"))
    norms = {name.split(".")[-1] for name in model.targeted_module_names}
    assert norms == {"self_attn_norm", "cross_attn_norm", "mlp_norm"}


def with_prefix(model, task: str) -> peft.PeftModel:
    return get_peft_model(model, PrefixTuningConfig(task_type=task, num_virtual_tokens=3)).eval()


@pytest.mark.parametrize(
    "fields", [{"token_dropout_mask_id": 4}, {"is_decoder": True}, {}], ids=str
)
def test_prefixes_before_what_reads_ids_masks_and_positions(fields):
    """With a prefix, the mask is longer than the ids."""
    config = stack_config(num_labels=3, **fields)
    model = build(rl.RoFormerLiteForSequenceClassification, config)
    tuned = with_prefix(model, "SEQ_CLS")
    positions = torch.arange(IDS.shape[1]).expand(len(IDS), -1)
    together = tuned(IDS, attention_mask=MASK, position_ids=positions).logits
    alone = tuned(IDS[1:2, :3], attention_mask=MASK[1:2, :3]).logits
    assert_close(together[1:2], alone)


def test_prefix_tuning_ignores_labels_of_padding():
    model = build(rl.RoFormerLiteForTokenClassification, stack_config(num_labels=3))
    tuned = with_prefix(model, "TOKEN_CLS")
    labels = torch.arange(IDS.numel()).view(IDS.shape) % 3
    ignored = labels.masked_fill(MASK == 0, -100)
    losses = [tuned(IDS, attention_mask=MASK, labels=given).loss for given in (labels, ignored)]
    assert losses[0] == losses[1]
