"""Padding-free models are trained with noise, by trainers of other libraries, and from checkpoints.

`tests/training/test_distributed.py` trains them in two processes. Everything here is in double
precision, so that two runs agree to the last digits, or differ for a reason."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers as st
import torch
import transformers
from comparisons import CountedTokens, batch_for, build, pair
from conftest import Batch, assert_close, data_beside
from datasets import Dataset
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import CNN, Pooling, Transformer
from tiny_models import tiny_model
from torch.nn.utils import parameters_to_vector
from toy_texts import TEXTS, word_tokenizer
from toy_training import TRAINER, logged

from hf_roformer_lite import padding_free

OPTIONS = {**TRAINER, "max_steps": 20, "per_device_train_batch_size": 4}


def rows_for(name: str) -> list[Batch]:
    """Rows of 2 to 15 tokens, padded to one length."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 16, (24,), generator=generator).tolist()
    batch = batch_for(name, lengths=tuple(lengths))
    return [{key: value[row] for key, value in batch.items()} for row in range(len(lengths))]


@dataclass
class Run:
    """The losses and the final weights of a training.

    `tokens` is the number of tokens that the first linear map of the model got, with padding."""

    losses: torch.Tensor
    weights: torch.Tensor
    tokens: int


def run(trainer: transformers.Trainer, resume: str | None = None) -> Run:
    model = trainer.model
    with CountedTokens(model) as counted:
        trainer.train(resume_from_checkpoint=resume)
    losses = torch.tensor(logged(trainer))
    weights = parameters_to_vector(model.parameters()).detach()
    return Run(losses=losses, weights=weights, tokens=sum(counted.numbers))


def trainer_of(
    model: torch.nn.Module, name: str, folder: Path, **options: Any
) -> transformers.Trainer:
    arguments = transformers.TrainingArguments(folder, **{**OPTIONS, **options})
    return transformers.Trainer(model, arguments, train_dataset=rows_for(name))


def two_of(name: str) -> list[torch.nn.Module]:
    """A stock model and a padding-free one with the same weights."""
    return [build(name).double(), padding_free(build(name).double())]


def assert_same(stock: Run, free: Run, is_flat: bool = True) -> None:
    assert len(stock.losses) >= 3 and stock.losses.std() > 1e-3
    assert_close(free.losses, stock.losses, rtol=1e-6, atol=1e-6)
    assert_close(free.weights, stock.weights, atol=1e-6)
    assert (free.tokens < stock.tokens) == is_flat


WAYS: dict[str, dict[str, Any]] = data_beside(__file__)["ways"]
TRAININGS = [("bert mlm", way) for way in WAYS] + [
    ("llama", "accumulation"),
    ("llama classes", "noise"),
]


@pytest.mark.parametrize("name, way", TRAININGS)
def test_ways_to_train(name, way, tmp_path):
    runs = [run(trainer_of(model, name, tmp_path, **WAYS[way])) for model in two_of(name)]
    assert_same(*runs)


@pytest.mark.parametrize("is_free", [False, True])
def test_either_kind_of_model_continues_the_training_of_the_other(is_free, tmp_path):
    name = "bert mlm"
    saving = {"save_strategy": "steps", "save_steps": 10}
    whole = run(trainer_of(two_of(name)[is_free], name, tmp_path, **saving))
    other = trainer_of(two_of(name)[not is_free], name, tmp_path)
    resumed = run(other, resume=str(tmp_path / "checkpoint-10"))
    assert_close(resumed.weights, whole.weights, atol=1e-6)


def saved(folder: Path, model_class: type) -> str:
    """Save a model in double precision with a tokenizer of words."""
    fields = {"num_labels": 1} if model_class is transformers.BertForSequenceClassification else {}
    model = tiny_model(model_class.config_class.model_type, model_class, **fields)
    model.double().save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("is_cross", [False, True])
def test_sentence_transformers(is_cross, tmp_path):
    model_class = (
        transformers.BertForSequenceClassification if is_cross else transformers.LlamaModel
    )
    base = saved(tmp_path / "base", model_class)
    columns: dict[str, list] = {"first": TEXTS[:20], "second": TEXTS[20:]}
    if is_cross:
        columns["label"] = [float(n % 2) for n in range(20)]
    kind = "CrossEncoder" if is_cross else "SentenceTransformer"
    trainer_class = getattr(st, f"{kind}Trainer")
    arguments_class = getattr(st, f"{kind}TrainingArguments")
    arguments = arguments_class(tmp_path, **{**OPTIONS, "learning_rate": 1e-2})
    runs = []
    for is_free in (False, True):
        if is_cross:
            model = padding_free(st.CrossEncoder(base, device="cpu"), enabled=is_free)
            loss = BinaryCrossEntropyLoss(model)
        else:
            modules = [Transformer(base), Pooling(64, pooling_mode="lasttoken")]
            model = padding_free(
                st.SentenceTransformer(modules=modules, device="cpu"), enabled=is_free
            )
            loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=3)
        data = Dataset.from_dict(columns)
        runs.append(run(trainer_class(model, arguments, train_dataset=data, loss=loss)))
    assert_same(*runs)


def test_a_pipeline():
    """The texts of a batch have different lengths."""
    options = {"tokenizer": word_tokenizer(), "batch_size": 4, "device": "cpu", "top_k": 1}
    scores = []
    for model in pair("bert classes"):
        classify = transformers.pipeline("text-classification", model=model, **options)
        scores.append([answer["score"] for (answer,) in classify(TEXTS[:12])])
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.slow
def test_processes_that_are_spawned(tmp_path):
    """A padding-free encoder is pickled for the processes of a pool, and encodes there the same."""
    base = saved(tmp_path / "base", transformers.BertModel)
    modules = [Transformer(base), Pooling(64)]
    model = st.SentenceTransformer(modules=modules, device="cpu")
    expected = model.encode(TEXTS[:12])
    pool = padding_free(model).start_multi_process_pool(["cpu", "cpu"])
    try:
        found = model.encode(TEXTS[:12], pool=pool, chunk_size=4)
    finally:
        model.stop_multi_process_pool(pool)
    assert_close(found, expected)


def test_a_convolution_over_the_states_is_refused(tmp_path):
    """A convolution mixes the states of real tokens with the states of padding."""
    base = saved(tmp_path / "base", transformers.BertModel)
    for kernel_sizes in ([1], [1, 3]):
        convolution = CNN(64, out_channels=8, kernel_sizes=kernel_sizes)
        modules = [Transformer(base), convolution, Pooling(8 * len(kernel_sizes))]
        model = st.SentenceTransformer(modules=modules, device="cpu").eval()
        expected = model.encode(TEXTS[:8])
        if kernel_sizes == [1]:
            padding_free(model)
        else:
            with pytest.raises(ValueError, match="differ"):
                padding_free(model)
        assert_close(model.encode(TEXTS[:8]), expected)


@pytest.mark.parametrize("attend", [True, False])
def test_queries_expanded_by_padding_are_refused(attend, tmp_path):
    """ColBERT compares the states of tokens that the model does not attend to."""
    base = saved(tmp_path / "base", transformers.BertModel)
    expansion = {"strategy": "fixed", "length": 16, "attend": attend}
    modules = [Transformer(base, query_expansion=expansion), MultiVectorMask()]
    model = st.MultiVectorEncoder(modules=modules, device="cpu").eval()
    queries = [text[:12] for text in TEXTS[:4]]
    expected = model.encode_query(queries)
    if attend:
        padding_free(model)
    else:
        with pytest.raises(ValueError, match="query_expansion"):
            padding_free(model)
    assert_close(model.encode_query(queries), expected)


def reward(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


TRL: dict[str, dict[str, Any]] = data_beside(__file__)["trl"]


@pytest.mark.parametrize("way", TRL)
def test_trl(way, tmp_path):
    """The trainers of TRL replace the forward pass of a language model by one that returns a number
    for each token."""
    import trl
    from peft import LoraConfig

    kind = way.partition(" ")[0].upper()
    columns = {
        "SFT": {"text": TEXTS},
        "DPO": {"prompt": TEXTS[:20], "chosen": TEXTS[20:], "rejected": TEXTS[13:33]},
        "GRPO": {"prompt": TEXTS},
    }[kind]
    folder = saved(tmp_path / "base", transformers.LlamaForCausalLM)
    runs = []
    more: dict[str, Any] = {}
    if way == "sft adapters":
        more["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    if kind == "GRPO":
        more["reward_funcs"] = reward
    for is_free in (False, True):
        model = padding_free(transformers.LlamaForCausalLM.from_pretrained(folder), enabled=is_free)
        if kind == "DPO":
            more["ref_model"] = transformers.LlamaForCausalLM.from_pretrained(folder)
        options = {**OPTIONS, "bf16": False, "gradient_checkpointing": False, **TRL[way]}
        arguments = getattr(trl, f"{kind}Config")(tmp_path, **options)
        data = Dataset.from_dict(columns)
        trainer = getattr(trl, f"{kind}Trainer")(
            model, args=arguments, train_dataset=data, processing_class=word_tokenizer(), **more
        )
        runs.append(run(trainer))
        if kind == "GRPO":
            # The loss of a single step of GRPO is zero, so the rewards are compared instead.
            runs[-1].losses = torch.tensor(logged(trainer, "reward"))
    assert_same(*runs, is_flat=way != "sft flat")
