"""`roformer-lite bundle`: a copy with code and a card that says what running it means; the source stays as it is."""

import json

from conftest import build, stack_config

from hf_roformer_lite import RoFormerLiteForMaskedLM, RoFormerLiteTokenizer
from roformer_lite.cli import main


def test_a_bundle_is_a_copy_with_code_and_a_card(tmp_path, capsys):
    source, out = tmp_path / "model", tmp_path / "out"
    tokenizer = RoFormerLiteTokenizer.train(["one two three"] * 8, vocab_size=300)
    build(RoFormerLiteForMaskedLM, stack_config(vocab_size=len(tokenizer))).save_pretrained(source)
    tokenizer.save_pretrained(source)
    (source / "results.json").write_text("{}")
    (source / ".git").mkdir()
    before = {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()}
    assert main(["bundle", str(source), str(out)]) == 0
    assert {path.name: path.read_bytes() for path in source.iterdir() if path.is_file()} == before
    names = {path.name for path in out.iterdir()}
    assert {*before, "README.md", "modeling_roformer_lite.py", "tokenization_roformer_lite.py"} <= names
    assert ".git" not in names and (out / "model.safetensors").read_bytes() == before["model.safetensors"]
    card = (out / "README.md").read_text()
    assert 'AutoModelForMaskedLM.from_pretrained("out", trust_remote_code=True)' in card
    assert 'AutoTokenizer.from_pretrained("out", trust_remote_code=True)' in card
    assert main(["bundle", str(source), str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_card_of_a_training_is_kept(tmp_path):
    source = tmp_path / "model"
    build(RoFormerLiteForMaskedLM, stack_config()).save_pretrained(source)
    (source / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    assert main(["bundle", str(source), str(tmp_path / "once")]) == 0
    card = (tmp_path / "once" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n---\n\n# Mine\n\n## Use without the package\n")
    assert json.loads((tmp_path / "once" / "config.json").read_text())["auto_map"]
    assert main(["bundle", str(tmp_path / "once"), str(tmp_path / "twice")]) == 0
    assert (tmp_path / "twice" / "README.md").read_text() == card


def test_a_bundle_names_a_class_that_there_is(tmp_path, capsys):
    build(RoFormerLiteForMaskedLM, stack_config()).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "architectures": ["os"]}))
    assert main(["bundle", str(tmp_path / "model"), str(tmp_path / "out")]) == 2
    assert "architectures" in capsys.readouterr().err and not (tmp_path / "out").exists()
