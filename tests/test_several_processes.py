"""The benchmark of several processes: what it counts is what the formulas say."""

import os
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.several_processes import Step, measure_here, on_paper  # noqa: E402


def test_paper_adds_up():
    rows = on_paper()
    for row in rows:
        sent = 2 * (row["gpus"] - 1) / row["gpus"] * 4 * row["weights"]
        assert row["sent_gb"] * 1e9 == pytest.approx(sent)
        assert row["compute_ms"] <= row["step_ms"] <= row["compute_ms"] + row["sending_ms"]
    alone = [row for row in rows if row["gpus"] == 1]
    assert all(row["efficiency"] == pytest.approx(1) for row in alone)


@pytest.mark.slow
def test_counted_bytes_are_those_of_the_formula(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    rows = measure_here(Step(size="tiny", vocab_size=300, batch=2, seq=16, rounds=2))
    sent = {row["way"]: row["sent_bytes"] for row in rows}
    weights = 4 * rows[0]["weights"]
    assert sent["alone"] == 0
    assert sent["ddp"] == weights, "2 (n - 1) / n of the gradients"
    # Gradients are scattered once. Weights are gathered for the forward pass and again for the backward pass, but for
    # those of the root, which are kept in between.
    assert weights / 2 * 2 <= sent["fsdp2"] <= weights / 2 * 3 + 4096
    states = 2 * 16 * 128 * 4  # of the batch that both share: summed up four times in each of two layers
    assert 8 * states <= sent["tp"] < 2 * 8 * states
