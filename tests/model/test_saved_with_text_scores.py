"""Models of version 0.1 and 0.2 that add scores of the text to their logits are refused.

Each folder has only the configuration, because nothing else may be read before it is refused.
"""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

from hf_roformer_lite import RoFormerLiteConfig
from roformer_lite.cli import main

DATA = Path(__file__).parent / "data"
FOLDERS = [
    "version_0_1/text-features-sequence",
    "version_0_1/text-features-tokens",
    "version_0_2/text-counts-sequence",
    "version_0_2/chained-tags-tokens",
    "version_0_2/decoded-tags-tokens",
]
FIELDS = ("classifier_text_features", "decode_tags")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_auto_classes_refuse_them(folder):
    for auto_class in (AutoConfig, AutoModel, AutoModelForTokenClassification):
        with pytest.raises(ValueError, match="version 0.2 of hf_roformer_lite"):
            auto_class.from_pretrained(DATA / folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_program_refuses_them(folder, tmp_path, capsys):
    shutil.copytree(DATA / folder, tmp_path / "m")
    (tmp_path / "rows.csv").write_text("text,label\n" + "a,b\nc,d\n" * 20)
    train = ["--train_file", str(tmp_path / "rows.csv"), "--output_dir", str(tmp_path / "out")]
    model = str(tmp_path / "m")
    for command in (
        ["predict", model],
        ["evaluate", model, "--test_file", str(tmp_path / "rows.csv")],
        ["export", model, str(tmp_path / "out")],
        ["train", "classify", "--model_name_or_path", model, *train],
    ):
        assert main(command) == 2
        message = capsys.readouterr().err
        assert "version 0.2 of hf_roformer_lite" in message and "config.json" in message
    assert not (tmp_path / "out").exists()


def test_the_fields_of_models_without_scores_are_dropped(tmp_path):
    """They are neither attributes nor saved again."""
    saved = json.loads((DATA / FOLDERS[-1] / "config.json").read_text())
    without = {**saved, "decode_tags": False, "classifier_text_features": 0}
    without["classifier_token_bytes"] = 32
    (tmp_path / "config.json").write_text(json.dumps(without))
    config = AutoConfig.from_pretrained(tmp_path)
    config.save_pretrained(tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    for field in (*FIELDS, "classifier_text_counts", "classifier_token_bytes"):
        assert field in without and field not in again and not hasattr(config, field)
    for field in FIELDS:
        with pytest.raises(TypeError, match=f"no field '{field}'"):
            RoFormerLiteConfig(**{field: 1})
