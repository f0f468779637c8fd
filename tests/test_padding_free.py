"""`padding_free`: models of transformers, held against themselves with their padding."""

import copy
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DataCollatorWithFlattening,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    EuroBertConfig,
    EuroBertForMaskedLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    GPT2Config,
    GPT2DoubleHeadsModel,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaModel,
    MambaConfig,
    MambaForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    NomicBertConfig,
    NomicBertForSequenceClassification,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForTokenClassification,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
    pipeline,
)

from hf_roformer_lite import RoFormerLiteTokenizer, padding_free

VOCAB = 60
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
BERT = {**SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
MODELS = {
    "bert mlm": lambda: BertForMaskedLM(BertConfig(**BERT)),
    "bert classes": lambda: BertForSequenceClassification(BertConfig(**BERT)),
    "bert tokens": lambda: BertForTokenClassification(BertConfig(**BERT)),
    "roberta mlm": lambda: RobertaForMaskedLM(RobertaConfig(**{**BERT, "pad_token_id": 1})),
    "distilbert": lambda: DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=48, dropout=0.0, attention_dropout=0.0
        )
    ),
    "electra": lambda: ElectraForSequenceClassification(ElectraConfig(**BERT, embedding_size=32)),
    "modernbert mlm": lambda: ModernBertForMaskedLM(
        ModernBertConfig(
            **SIZES, local_attention=6, global_attn_every_n_layers=2, bos_token_id=1, cls_token_id=1, sep_token_id=2
        )
    ),
    "nomic": lambda: NomicBertForSequenceClassification(NomicBertConfig(**BERT)),
    "eurobert mlm": lambda: EuroBertForMaskedLM(EuroBertConfig(**SIZES, mask_token_id=4)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**DECODER)),
    "llama classes": lambda: LlamaForSequenceClassification(LlamaConfig(**DECODER)),
    "qwen tokens": lambda: Qwen3ForTokenClassification(Qwen3Config(**DECODER)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    ),
}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def make(name: str) -> torch.nn.Module:
    """A model without dropout, and with weights large enough for a leak to show."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def pair(name: str, **options: bool) -> tuple[torch.nn.Module, torch.nn.Module]:
    model = make(name)
    return model, padding_free(copy.deepcopy(model), **options)


def batch_for(name: str, side: str = "right", lengths: tuple[int, ...] = (12, 7, 1, 4)) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    shape = (len(lengths), max(lengths))
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    mask = mask.flip(1) if side == "left" else mask
    ids = torch.randint(5, VOCAB, shape, generator=generator)
    batch = {"input_ids": ids.where(mask != 0, 1 if name.startswith("roberta") else 0), "attention_mask": mask}
    is_labelled = mask.bool() & (torch.rand(shape, generator=generator) < 0.6)
    is_labelled[:, 1:] &= mask[:, :-1].bool()  # none after padding on the left
    is_labelled[:, 0] &= side == "right"
    if "tokens" in name:
        batch["labels"] = (ids % 2).masked_fill(~is_labelled, -100)
    elif "classes" in name or name.split()[0] in ("distilbert", "electra", "nomic"):
        batch["labels"] = torch.arange(len(lengths)) % 2
    else:
        batch["labels"] = ids.masked_fill(~is_labelled, -100)
    return batch


def gradients(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    model.train().zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_losses_and_gradients(name, side):
    if side == "left" and name == "gpt2":
        side = "holes"  # which go through as they are
    stock, free = pair(name)
    batch = batch_for(name, "left" if side == "left" else "right")
    if side == "holes":
        batch["attention_mask"][0, 5] = batch["labels"][0, 5] = 0
        batch["labels"][0, 5:7] = -100
    with torch.no_grad():
        expected, found = stock(**batch), free(**batch)
    assert found.logits.shape == expected.logits.shape
    real = batch["attention_mask"].bool() if expected.logits.ndim == 3 else slice(None)
    torch.testing.assert_close(found.logits[real], expected.logits[real], **CLOSE)
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    if expected.logits.ndim == 3:
        assert side == "holes" or not found.logits[~real].any()
    batch |= {"num_items_in_batch": torch.tensor(7)} if expected.logits.ndim == 3 and "tokens" not in name else {}
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_logits_in_training():
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    assert free.train()(**batch).get("logits") is None
    whole = padding_free(free, skip_logits=False)(**batch).logits
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(whole[real], stock(**batch).logits[real], **CLOSE)


@pytest.mark.parametrize("model_class", [BertForQuestionAnswering, BertForMultipleChoice])
def test_other_heads(model_class):
    torch.manual_seed(0)
    stock = model_class(BertConfig(**BERT)).eval()
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm")
    batch.pop("labels")
    if model_class is BertForMultipleChoice:
        batch = {name: value.view(2, 2, -1) for name, value in batch.items()}
    expected, found = stock(**batch), free(**batch)
    scores = "logits" if model_class is BertForMultipleChoice else "start_logits"
    real = slice(None) if scores == "logits" else batch["attention_mask"].bool()
    torch.testing.assert_close(found[scores][real], expected[scores][real], **CLOSE)


def test_inputs_of_other_kinds():
    torch.manual_seed(0)
    stock = BertModel(BertConfig(**BERT)).eval()
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    vectors = stock.embeddings.word_embeddings(ids).detach()
    four = mask[:, None, None].bool().expand(-1, 1, 12, -1)
    real = mask.bool()
    for inputs in (
        {"inputs_embeds": vectors, "attention_mask": mask},
        {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2},
        {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True},
        {"input_ids": ids, "attention_mask": four},
        {"input_ids": ids},
    ):
        expected, found = stock(**inputs), free(**inputs)
        torch.testing.assert_close(found.last_hidden_state[real], expected.last_hidden_state[real], **CLOSE)
        torch.testing.assert_close(found.pooler_output, expected.pooler_output, **CLOSE)
        for one, other in zip(found.hidden_states or (), expected.hidden_states or (), strict=True):
            torch.testing.assert_close(one[real], other[real], **CLOSE)


@pytest.mark.parametrize("name", ["bert mlm", "gpt2"])
def test_labels_of_padding_count_as_before(name):
    stock, free = pair(name)
    batch = batch_for(name)
    batch["labels"] = batch["input_ids"]
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_packed_rows_equal_separate_ones(name):
    stock, free = pair(name)
    rows = [{"input_ids": torch.randint(5, VOCAB, (length,)).tolist()} for length in (9, 1, 14, 5)]
    separate = []
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        separate.append(stock(ids).logits[0])
    packed = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(rows)
    found = free(**packed)
    torch.testing.assert_close(found.logits[0], torch.cat(separate), **CLOSE)
    targets = [torch.tensor(row["input_ids"][1:], dtype=torch.long) for row in rows]
    losses = [
        torch.nn.functional.cross_entropy(logits[:-1], target, reduction="sum")
        for logits, target in zip(separate, targets, strict=True)
    ]
    torch.testing.assert_close(free.train()(**packed).loss, sum(losses) / (29 - 4), **CLOSE)


def test_nothing_is_saved(tmp_path):
    stock, free = pair("bert classes")
    stock.save_pretrained(tmp_path / "stock")
    free.save_pretrained(tmp_path / "free")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "free" / file).read_bytes() == (tmp_path / "stock" / file).read_bytes()
    batch = batch_for("bert classes")
    torch.save({name: batch[name] for name in ("input_ids", "attention_mask")}, tmp_path / "batch.pt")
    script = (
        "import sys; sys.modules['hf_roformer_lite'] = None\n"
        "import torch; from transformers import AutoModelForSequenceClassification as Auto\n"
        "from safetensors.torch import save_file\n"
        f"model, batch = Auto.from_pretrained(r'{tmp_path / 'free'}'), torch.load(r'{tmp_path / 'batch.pt'}')\n"
        f"save_file({{'logits': model(**batch).logits.detach()}}, r'{tmp_path / 'logits.safetensors'}')"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    found = load_file(tmp_path / "logits.safetensors")["logits"]
    torch.testing.assert_close(found, free(**batch).logits, **CLOSE)


def test_copies_and_undoing():
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    padding_free(padding_free(free))  # twice is once
    twin = copy.deepcopy(free)
    with torch.no_grad():
        twin.bert.embeddings.word_embeddings.weight.zero_()
    expected, real = stock(**batch).logits, batch["attention_mask"].bool()
    torch.testing.assert_close(free(**batch).logits[real], expected[real], **CLOSE)
    assert not torch.allclose(twin(**batch).logits[real], expected[real], atol=1e-3)
    for model in (free, padding_free(twin, False)):
        padding_free(model, False)
        assert model.config._attn_implementation == stock.config._attn_implementation
        assert type(model) is BertForMaskedLM and model.state_dict().keys() == stock.state_dict().keys()
    torch.testing.assert_close(free(**batch).logits, expected, rtol=0, atol=0)  # at padding, too
    assert free.train()(**batch).logits is not None


REFUSED = {
    "another attention": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    ),
    "no attention": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, pad_token_id=0)
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_models_are_left_as_they_were(kind):
    torch.manual_seed(0)
    model = REFUSED[kind]()
    before = model.config._attn_implementation, model.training
    with pytest.raises(ValueError, match=type(model).__name__):
        padding_free(model)
    assert (model.config._attn_implementation, model.training) == before


def test_tokens_that_meet_outside_attention_are_refused():
    """A layer adds a hundredth of the mean of a row, its padding included."""

    class Mixing(torch.nn.Linear):
        def forward(self, states):
            mapped = super().forward(states)
            return mapped + 0.01 * mapped.mean(1, keepdim=True)

    model = make("bert classes")
    layer = model.bert.encoder.layer[0].intermediate
    layer.dense.__class__ = Mixing
    with pytest.raises(ValueError, match="BertForSequenceClassification"):
        padding_free(model)


def test_an_error_within_leaves_no_trace():
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    with pytest.raises(IndexError):
        free(input_ids=batch["input_ids"] + VOCAB, attention_mask=batch["attention_mask"])
    real = batch["attention_mask"].bool()
    found = free.bert(batch["input_ids"], batch["attention_mask"])[0]
    torch.testing.assert_close(found[real], stock.bert(batch["input_ids"], batch["attention_mask"])[0][real], **CLOSE)


def test_threads_do_not_meet():
    stock, free = pair("bert classes")
    batches = [batch_for("bert classes", lengths=lengths) for lengths in ((12, 3), (5, 9, 2), (1, 1, 8))]
    expected, wrong = [stock(**batch).logits for batch in batches], []

    def work(number: int) -> None:
        for _ in range(20):
            found = free(**batches[number]).logits
            if not torch.allclose(found, expected[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generate(name, use_cache):
    stock, free = pair(name)
    batch = batch_for(name, "left")
    batch.pop("labels")
    options = {"max_new_tokens": 8, "do_sample": False, "use_cache": use_cache, "pad_token_id": 0}
    assert torch.equal(free.generate(**batch, **options), stock.generate(**batch, **options))


def test_compiled_as_a_whole():
    stock, free = pair("bert classes")
    batch = batch_for("bert classes")
    compiled = torch.compile(free, backend="eager")
    torch.testing.assert_close(compiled(**batch).logits, stock(**batch).logits, **CLOSE)


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough for a leak to show, and no dropout."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def real_outputs(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of its output, those for each token at real tokens alone."""
    real = inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones(4, 12, dtype=torch.bool)
    outputs = {name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)}
    return {name: value[real] if value.shape[:2] == real.shape else value for name, value in outputs.items()}


def width(batch: dict[str, torch.Tensor], more: int) -> dict[str, torch.Tensor]:
    return {name: torch.nn.functional.pad(value, (0, more)) for name, value in batch.items()}


def position_rows() -> torch.Tensor:
    return torch.cat([torch.arange(5), torch.arange(7)]).expand(4, -1)


def scaled(rope_type: str, **options) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, **options}}


def llama4() -> torch.nn.Module:
    return Llama4ForCausalLM(
        Llama4TextConfig(
            **DECODER, intermediate_size_mlp=48, num_local_experts=2, attention_chunk_size=20, bos_token_id=1
        )
    )


def gemma3() -> torch.nn.Module:
    text = {**DECODER, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": 64}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_id=50)
    return Gemma3ForConditionalGeneration(config)


LONG = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 16}
DYNAMIC = {**DECODER, "max_position_embeddings": 8, **scaled("dynamic", factor=2.0)}
PHI = {**SIZES, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, **scaled("longrope", **LONG)}
MODERN = {**SIZES, "local_attention": 6, "global_attn_every_n_layers": 2, "bos_token_id": 1, "cls_token_id": 1}
MODERN |= {"sep_token_id": 2}
PLACES = {"start_positions": torch.tensor([3, 2, 0, 1]), "end_positions": torch.tensor([5, 3, 0, 2])}
IMAGE = torch.zeros(4, 12, dtype=torch.long).index_fill(1, torch.arange(1, 4), 1)
IMAGE[[0, 2, 3]] = 0  # in the second row
HOLES = torch.ones(4, 12, dtype=torch.long).index_fill(1, torch.tensor([4, 5]), 0)
ROW = torch.ones(4, 12, dtype=torch.long).index_fill(0, torch.tensor([1]), 0)

UNUSUAL = {  # the model, what its batch holds besides, and places of padding that all rows have after it
    "the places of an answer": (lambda: BertForQuestionAnswering(BertConfig(**BERT)), PLACES, 0),
    "images in another row": (gemma3, {"token_type_ids": IMAGE}, 0),
    "chunks of attention": (llama4, {}, 0),
    "holes in a window": (lambda: ModernBertForMaskedLM(ModernBertConfig(**MODERN)), {"attention_mask": HOLES}, 0),
    "a row of padding": (lambda: LlamaForSequenceClassification(LlamaConfig(**DECODER)), {"attention_mask": ROW}, 0),
    "padding alone": (lambda: LlamaForCausalLM(LlamaConfig(**DECODER)), {"attention_mask": ROW * 0}, 0),
    "dynamic frequencies": (lambda: LlamaForCausalLM(LlamaConfig(**DYNAMIC)), {"use_cache": False}, 8),
    "long frequencies": (lambda: Phi3ForCausalLM(Phi3Config(**PHI)), {"use_cache": False}, 8),
    "positions that restart": (lambda: BertModel(BertConfig(**BERT)), {"position_ids": position_rows()}, 0),
    "the same, causal": (lambda: LlamaModel(LlamaConfig(**DECODER)), {"position_ids": position_rows()}, 0),
    "the same, packed": (
        lambda: LlamaModel(LlamaConfig(**DECODER)),
        {"position_ids": position_rows(), "attention_mask": None, "use_cache": False},
        0,
    ),
    "the same, with a cache": (
        lambda: LlamaModel(LlamaConfig(**DECODER)),
        {"position_ids": position_rows(), "attention_mask": None},
        0,
    ),
    "positions with gaps": (
        lambda: LlamaModel(LlamaConfig(**DECODER)),
        {"position_ids": position_rows() * 2, "attention_mask": None, "use_cache": False},
        0,
    ),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_not_understood_is_as_it_was(case):
    build, others, more = UNUSUAL[case]
    stock = spread(build())
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm", lengths=(30 if case == "chunks of attention" else 12, 7, 1, 4))
    batch.pop("labels")
    if case == "a row of padding":
        batch["input_ids"][1] = 0
    batch = {name: value for name, value in (width(batch, more) | others).items() if value is not None}
    torch.testing.assert_close(real_outputs(free, batch), real_outputs(stock, batch), **CLOSE)


@pytest.mark.parametrize("way", ["eager", "sdpa", "checkpointing", "input gradients", "encoder", "base"])
def test_what_changes_afterwards(way):
    """Another attention implementation, a hook on the embeddings, parts that are compiled."""
    stock, free = pair("bert mlm" if way == "base" else "bert classes")
    if way in ("eager", "sdpa"):
        free.set_attn_implementation(way)
    elif way == "checkpointing":
        free.gradient_checkpointing_enable()
        free.enable_input_require_grads()
    elif way == "input gradients":
        free.enable_input_require_grads()
    else:
        torch.compiler.reset()
        (free.bert.encoder if way == "encoder" else free.bert).compile(backend="eager")
    batch = batch_for("bert mlm" if way == "base" else "bert classes")
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_embeddings_of_layers_survive_input_gradients():
    """Gemma 3n reads the ids again, for embeddings of each layer: vectors in their place say less."""
    kinds = ["sliding_attention", "full_attention"] * 2
    config = {**DECODER, "num_hidden_layers": 4, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8}
    config |= {"laurel_rank": 4, "num_kv_shared_layers": 2, "layer_types": kinds, "bos_token_id": 1, "eos_token_id": 2}
    config |= {"activation_sparsity_pattern": [0.0] * 4}
    stock = spread(Gemma3nForCausalLM(Gemma3nTextConfig(**config)))
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("llama") | {"use_cache": False}
    for model in (stock, free):
        model.enable_input_require_grads()
    torch.testing.assert_close(real_outputs(free, batch), real_outputs(stock, batch), **CLOSE)
    for model in (stock, free):  # NEFTune's noise, of which there is none here
        model.get_input_embeddings().neftune_noise_alpha = 0.0
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_caches():
    """A language model makes the cache that its caller goes on from. Where nobody is likely to, there is none, and
    an error says so to whoever goes on from it."""
    stock, free = pair("llama")
    batch = batch_for("llama", "left")
    batch.pop("labels")
    sequences = []
    for model in (stock, free):
        mask, output, tokens = batch["attention_mask"], model(**batch), []
        for _ in range(4):
            tokens.append(output.logits[:, -1].argmax(-1, keepdim=True))
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            output = model(tokens[-1], attention_mask=mask, past_key_values=output.past_key_values)
        sequences.append(torch.cat(tokens, 1))
    assert torch.equal(*sequences)
    _, classifier = pair("llama classes")
    for model in (free.model, classifier):
        with pytest.raises(AttributeError, match="use_cache=True"):
            model(batch["input_ids"][:, :1], past_key_values=model(**batch).past_key_values)
        assert model(**batch, use_cache=False).past_key_values is None
        assert model(**batch, use_cache=True).past_key_values.get_seq_length() == 12


@pytest.mark.parametrize(
    "name, more",
    [("llama", {"use_cache": False}), ("llama", {"labels": ...}), ("llama classes", {}), ("bert classes", {})],
)
def test_evaluation_computes_real_tokens_alone(name, more):
    _, free = pair(name)
    batch, tokens = batch_for(name), []
    labels = batch.pop("labels")
    linear = next(module for module in free.modules() if isinstance(module, torch.nn.Linear))
    linear.register_forward_pre_hook(lambda _, args: tokens.append(args[0][..., 0].numel()))
    for model in (free, free.base_model):
        model(**batch | {key: labels if value is ... else value for key, value in more.items() if model is free})
    assert tokens == [24, 24]


def test_losses_of_rows():
    """A loss that somebody put in place of the stock one may look at rows."""

    def loss_of_rows(logits, labels, vocab_size, **_):
        losses = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none")
        return (losses.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean()

    stock, free = pair("llama")
    stock.loss_function = free.loss_function = loss_of_rows
    batch = batch_for("llama")
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_probabilities_of_attention():
    model = spread(BertModel._from_config(BertConfig(**BERT), attn_implementation="eager"))
    batch = batch_for("bert mlm")
    batch.pop("labels")
    expected = model(**batch, output_attentions=True).attentions
    found = padding_free(model)(**batch, output_attentions=True).attentions
    torch.testing.assert_close(found, expected, **CLOSE)


def test_modes_of_training_stay():
    model = make("bert classes").train()
    model.bert.eval()
    modes = [module.training for module in padding_free(model).modules()]
    assert modes == [module.training for module in padding_free(model, False).modules()]
    assert model.training and not model.bert.training


def test_every_model_within_a_module():
    towers = torch.nn.ModuleList([make("bert mlm"), torch.nn.Sequential(make("bert classes"))])
    padding_free(towers)
    assert [type(part) is BertModel for part in (towers[0].bert, towers[1][0].bert)] == [False, False]
    towers.append(REFUSED["no attention"]())
    with pytest.raises(ValueError, match="MambaForCausalLM"):
        padding_free(towers)
    assert type(towers[0].bert) is BertModel and type(towers[0]) is BertForMaskedLM


def test_token_classifiers_keep_their_logits():
    stock, free = pair("bert tokens")
    batch = batch_for("bert tokens")
    found, expected = free.train()(**batch), stock(**batch)
    weights = torch.tensor([1.0, 3.0])
    losses = [
        torch.nn.functional.cross_entropy(output.logits.view(-1, 2), batch["labels"].view(-1), weights)
        for output in (found, expected)
    ]
    torch.testing.assert_close(*losses, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_meet_outside_attention_are_refused(dtype):
    """By a convolution, at the size of a fresh model; and a head that reads the last place of rows."""
    torch.manual_seed(0)
    model = Lfm2ForCausalLM(Lfm2Config(**DECODER, layer_types=["conv", "full_attention"])).to(dtype)
    with pytest.raises(ValueError, match="rows"):
        padding_free(model)
    if dtype == torch.float32:
        heads = GPT2DoubleHeadsModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, num_labels=1))
        with pytest.raises(ValueError, match="GPT2DoubleHeadsModel"):
            padding_free(spread(heads))


def rows_for(name: str) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 16, (24,), generator=generator).tolist()
    return [
        {key: value[0] for key, value in batch_for(f"{name} {number}", lengths=(length,)).items()}
        for number, length in enumerate(lengths)
    ]


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        key: torch.nn.utils.rnn.pad_sequence([row[key] for row in rows], batch_first=True, padding_value=fill[key])
        if rows[0][key].ndim
        else torch.stack([row[key] for row in rows])
        for key in rows[0]
    }


def curve(model: torch.nn.Module, name: str, folder, **options) -> torch.Tensor:
    arguments = TrainingArguments(
        folder,
        max_steps=20,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        **options,
    )
    rows = rows_for(name)
    trainer = Trainer(model, arguments, data_collator=collate, train_dataset=rows, eval_dataset=rows[:8])
    trainer.train()
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    return torch.tensor([*losses, trainer.evaluate()["eval_loss"]], dtype=torch.float64)


FAMILIES = [name for name in MODELS if name != "roberta mlm"]  # whose padding is another number


@pytest.mark.parametrize(
    "name", [name if name == "bert mlm" else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
)
def test_training_curves(name, tmp_path):
    stock, free = pair(name)
    expected = curve(stock, name, tmp_path)
    assert expected[15:20].mean() < expected[:5].mean()
    torch.testing.assert_close(curve(free, name, tmp_path), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"train_sampling_strategy": "group_by_length"},
        {"label_smoothing_factor": 0.1},
    ],
    ids=["accumulation", "reentrant", "checkpointing", "grouped", "smoothing"],
)
@pytest.mark.parametrize("name", ["bert mlm", "llama"])
def test_ways_to_train(name, options, tmp_path):
    stock, free = pair(name)
    expected = curve(stock, name, tmp_path, **options)
    torch.testing.assert_close(curve(free, name, tmp_path, **options), expected, rtol=1e-5, atol=1e-5)


def test_autocast():
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = stock(**batch).loss, free(**batch).loss
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("is_first", [True, False])
def test_adapters(is_first):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    stock, free = make("bert mlm"), make("bert mlm")
    torch.manual_seed(1)
    stock = get_peft_model(stock, lora)
    torch.manual_seed(1)
    free = get_peft_model(padding_free(free), lora) if is_first else padding_free(get_peft_model(free, lora))
    batch = batch_for("bert mlm")
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_sentence_transformers_and_pipelines(tmp_path):
    from sentence_transformers import SentenceTransformer, models

    texts = ["a cat sat", "the dog ran far away over the hill", "no"]
    tokenizer = RoFormerLiteTokenizer.train(texts, vocab_size=300)
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = BertConfig(**{**BERT, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id})
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    layers = models.Transformer(str(tmp_path))
    encoder = SentenceTransformer(modules=[layers, models.Pooling(32)], device="cpu")
    expected = torch.from_numpy(encoder.encode(texts))
    torch.testing.assert_close(torch.from_numpy(padding_free(encoder).encode(texts)), expected, **CLOSE)

    classify = pipeline("text-classification", model, tokenizer=tokenizer, device="cpu")
    before = [answer["score"] for answer in classify(texts, batch_size=3)]
    padding_free(classify.model)
    after = [answer["score"] for answer in classify(texts, batch_size=3)]
    assert after == pytest.approx(before, abs=1e-5)
