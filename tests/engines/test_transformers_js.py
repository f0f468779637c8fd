"""The tutorial for node: the labels and scores of `predict`, where node and transformers.js are installed."""

import shutil
import subprocess

import pytest
from conftest import ROOT
from saved_models import save_model
from test_engines import LINES

from roformer_lite.cli import main
from roformer_lite.predict.predictor import Predictor

PACKAGE = "require('@huggingface/transformers')"


@pytest.mark.slow
def test_classify_transformers_js(tmp_path):
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", PACKAGE], capture_output=True).returncode:
        pytest.skip("needs node, and @huggingface/transformers where NODE_PATH says")
    save_model("classify", tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "out")]) == 0
    lines = [line for line in LINES if line]
    command = [node, str(ROOT / "tutorials" / "classify_transformers_js.cjs"), "out"]
    done = subprocess.run(command, cwd=tmp_path, input="\n".join(lines), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = Predictor.load(str(tmp_path / "model")).answer(lines, 8)
    for found, answer in zip(done.stdout.splitlines(), expected, strict=True):
        label, score = found.split("\t")
        assert label == answer.columns["label"] and float(score) == pytest.approx(answer.columns["score"], abs=2e-4)
