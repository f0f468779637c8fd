"""Tests of batches without rows."""

import pytest
from conftest import gradients_of
from toy_training import HEADS, make_batch, make_model


@pytest.mark.parametrize("kind", HEADS)
def test_no_rows(kind):
    for training in (False, True):
        model = make_model(kind).train(training)
        no_rows = {name: tensor[:0] for name, tensor in make_batch(kind).items()}
        model(**no_rows).loss.backward()
        gradients = gradients_of(model)
        assert gradients and all((gradient == 0).all() for gradient in gradients)
