"""Names of files in a model's directory that lead out of it are refused before anything is read."""

import json

import pytest

from hf_roformer_lite.conversion.checkpoint_files import ConversionError, check_shards
from roformer_lite.errors import InputError
from roformer_lite.saved.saved_model import sentence_modules


def test_weights_that_the_configuration_names(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"transformers_weights": "x.index.json"}))
    with pytest.raises(ConversionError, match="transformers_weights"):
        check_shards(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    check_shards(tmp_path)


@pytest.mark.parametrize("folder", ["../elsewhere", "/elsewhere", "inside/../../elsewhere"])
def test_modules_outside_of_the_directory(tmp_path, folder):
    model = tmp_path / "model"
    model.mkdir()
    kind = "sentence_transformers.models.Pooling"
    (model / "modules.json").write_text(json.dumps([{"path": folder, "type": kind}]))
    with pytest.raises(InputError, match="modules.json"):
        sentence_modules(str(model))
