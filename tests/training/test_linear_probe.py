"""The head that is fitted on a frozen encoder agrees with linear models of scikit-learn."""

import copy
from itertools import product

import numpy as np
import pytest
import torch
from conftest import assert_equal
from datasets import Dataset
from sklearn.linear_model import LogisticRegression, Ridge
from toy_training import arguments
from transformers import (
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    TrainingArguments,
)

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteTokenizer,
)
from roformer_lite.options.common import TrainingOptions
from roformer_lite.training import head
from roformer_lite.training.pairs import learn_from_pairs
from roformer_lite.training.trainer import RoFormerLiteTrainer, Trainer

COLOUR_NAMES = ["red", "green", "blue"]
SIZES = ["small", "large", ""]
THINGS = ["box", "ball"]
TEXTS = [" ".join(words) for words in product(COLOUR_NAMES, SIZES, THINGS)] * 20
TOKENIZER = RoFormerLiteTokenizer.train(TEXTS, vocab_size=300)
PENALTY = 10.0
SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def new_model(model_class: type[PreTrainedModel], **fields) -> PreTrainedModel:
    torch.manual_seed(0)
    return model_class(RoFormerLiteConfig(vocab_size=len(TOKENIZER), **SMALL, **fields)).eval()


@torch.no_grad()
def computed(model: PreTrainedModel, data: Dataset) -> tuple[torch.Tensor, torch.Tensor]:
    """What the last layer of the head reads and what it writes, one row for each text or token."""
    states = []
    hook = model.classifier.out_proj.register_forward_pre_hook(
        lambda _, inputs: states.append(inputs[0].flatten(0, -2))
    )
    logits = [model(torch.tensor([ids])).logits.flatten(0, -2) for ids in data["input_ids"]]
    hook.remove()
    return torch.cat(states), torch.cat(logits)


@pytest.fixture(autouse=True)
def penalty(current_folder, monkeypatch) -> None:
    """Fit heads with one penalty, and write to an empty folder."""
    monkeypatch.setattr(head, "PENALTIES", (PENALTY,))


def probe(
    model_class: type[PreTrainedModel], labels: list, **fields
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the head of a random encoder, and return what its last layer reads and what it writes."""
    model = new_model(model_class, **fields)
    encoded = Dataset.from_dict({**TOKENIZER(TEXTS), "labels": labels})
    of_tokens = model_class is RoFormerLiteForTokenClassification
    collator = DataCollatorForTokenClassification if of_tokens else DataCollatorWithPadding
    frozen = copy.deepcopy(model.model.state_dict())
    head.fit_head(Trainer(model, arguments("."), collator(TOKENIZER), encoded))
    assert_equal(model.model.state_dict(), frozen)
    states, logits = computed(model, encoded)
    return states.numpy(), logits.numpy()


def standardised(states: np.ndarray) -> np.ndarray:
    centred = states - states.mean(axis=0)
    return centred / np.sqrt(np.square(centred).mean())


def centred(scores: np.ndarray) -> np.ndarray:
    """Subtract the mean of each row, because logits may all be shifted by one number."""
    return scores - scores.mean(axis=-1, keepdims=True)


def logistic(penalty: float, states: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """The scores of a logistic regression that is fitted to these states."""
    machine = LogisticRegression(C=1 / penalty, tol=1e-6, max_iter=1000).fit(states, answers)
    return machine.decision_function(states)


COLOURS = np.array([COLOUR_NAMES.index(text.split()[0]) for text in TEXTS])
NOISY = np.where(np.random.default_rng(0).random(len(TEXTS)) < 0.2, (COLOURS + 1) % 3, COLOURS)


def test_classes():
    states, logits = probe(RoFormerLiteForSequenceClassification, NOISY.tolist(), num_labels=3)
    expected = logistic(PENALTY, standardised(states), NOISY)
    np.testing.assert_allclose(centred(logits), centred(expected), atol=0.02)


def test_sets_of_labels():
    answers = np.stack((NOISY == 0, ["large" in text for text in TEXTS]), axis=1).astype(float)
    problem = {"num_labels": 2, "problem_type": "multi_label_classification"}
    states, logits = probe(RoFormerLiteForSequenceClassification, answers.tolist(), **problem)
    states = standardised(states)
    # The loss is the mean over both labels, so that the penalty counts twice for each.
    for column in range(2):
        expected = logistic(PENALTY * 2, states, answers[:, column])
        np.testing.assert_allclose(logits[:, column], expected, atol=0.02)


def test_numbers():
    numbers = [float(len(text)) for text in TEXTS]
    problem = {"num_labels": 1, "problem_type": "regression"}
    states, logits = probe(RoFormerLiteForSequenceClassification, numbers, **problem)
    expected = Ridge(PENALTY / 2).fit(standardised(states), numbers).predict(standardised(states))
    np.testing.assert_allclose(logits[:, 0], expected, atol=0.02)


def test_tokens():
    """The head is fitted to the labelled tokens only."""
    draw = np.random.default_rng(1)
    labels = [
        [-100, *draw.integers(0, 3, len(ids) - 2).tolist(), -100]
        for ids in TOKENIZER(TEXTS)["input_ids"]
    ]
    states, logits = probe(RoFormerLiteForTokenClassification, labels, num_labels=3)
    answers = np.concatenate(labels)
    is_labelled = answers >= 0
    expected = logistic(PENALTY, standardised(states[is_labelled]), answers[is_labelled])
    np.testing.assert_allclose(centred(logits[is_labelled]), centred(expected), atol=0.02)


def test_penalty_is_that_of_the_least_loss_on_what_is_held_out(monkeypatch):
    """Random labels need the strongest penalty, and clear labels the weakest one."""
    clear = probe(RoFormerLiteForSequenceClassification, COLOURS.tolist(), num_labels=3)[1]
    monkeypatch.setattr(head, "PENALTIES", (1e6, PENALTY))
    chosen = probe(RoFormerLiteForSequenceClassification, COLOURS.tolist(), num_labels=3)[1]
    np.testing.assert_allclose(centred(chosen), centred(clear), atol=0.05)
    random_labels = np.random.default_rng(2).permutation(COLOURS)
    noise = probe(RoFormerLiteForSequenceClassification, random_labels.tolist(), num_labels=3)[1]
    assert np.abs(centred(noise)).max() < 0.1


def test_texts_of_a_label_come_together():
    """Contrastive training raises the cosines of texts with the same label above the others."""
    encoded = Dataset.from_dict({**TOKENIZER(TEXTS), "labels": COLOURS.tolist()}).select(range(60))
    model = new_model(RoFormerLiteForSequenceClassification, num_labels=3)
    trainer = RoFormerLiteTrainer(
        model,
        TrainingArguments(".", use_cpu=True, learning_rate=3e-3),
        DataCollatorWithPadding(TOKENIZER),
        encoded,
        options=TrainingOptions(output_dir="m"),
        lengths=(),
    )
    same = torch.tensor(COLOURS[:60, None] == COLOURS[None, :60])

    def gap() -> torch.Tensor:
        states, _ = computed(model.eval(), encoded)
        vectors = torch.nn.functional.normalize(states, dim=-1)
        cosines = vectors @ vectors.T
        return cosines[same].mean() - cosines[~same].mean()

    assert gap() < 0.4
    learn_from_pairs(trainer, is_done=False)
    assert gap() > 0.7
