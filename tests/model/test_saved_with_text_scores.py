"""Models of version 0.1 and 0.2 that add scores of the text to their logits are refused.

Each folder has only the configuration, because nothing else may be read before it is refused.
"""

import shutil
from pathlib import Path

import pytest
from program import config_of, refused, write_json, write_rows
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

from hf_roformer_lite import RoFormerLiteConfig

DATA = Path(__file__).parent / "data"
FOLDERS = """
    version_0_1/text-features-sequence
    version_0_1/text-features-tokens
    version_0_2/text-counts-sequence
    version_0_2/chained-tags-tokens
    version_0_2/decoded-tags-tokens
""".split()
FIELDS = ("classifier_text_features", "decode_tags")


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_auto_classes_refuse_them(folder):
    for auto_class in (AutoConfig, AutoModel, AutoModelForTokenClassification):
        with pytest.raises(ValueError, match="version 0.2 of hf_roformer_lite"):
            auto_class.from_pretrained(DATA / folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_program_refuses_them(folder, tmp_path):
    model = shutil.copytree(DATA / folder, tmp_path / "m")
    data = write_rows(tmp_path / "rows.jsonl", [{"text": "a", "label": "b"}] * 40)
    out = tmp_path / "out"
    start = {"train_file": data, "output_dir": out, "model_name_or_path": model}
    for message in (
        refused("predict", model),
        refused("evaluate", model, test_file=data),
        refused("export", model, out),
        refused("train classify", **start),
    ):
        assert "version 0.2 of hf_roformer_lite" in message and "config.json" in message
    assert not out.exists()


def test_the_fields_of_models_without_scores_are_dropped(tmp_path):
    """They are neither attributes nor saved again."""
    saved = config_of(DATA / FOLDERS[-1])
    without = {**saved, "decode_tags": False, "classifier_text_features": 0}
    without["classifier_token_bytes"] = 32
    write_json(tmp_path / "config.json", without)
    config = AutoConfig.from_pretrained(tmp_path)
    config.save_pretrained(tmp_path / "again")
    again = config_of(tmp_path / "again")
    for field in (*FIELDS, "classifier_text_counts", "classifier_token_bytes"):
        assert field in without and field not in again and not hasattr(config, field)
    for field in FIELDS:
        with pytest.raises(TypeError, match=f"no field '{field}'"):
            RoFormerLiteConfig(**{field: 1})
