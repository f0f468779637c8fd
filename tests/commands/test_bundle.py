"""`roformer-lite bundle` on a directory that has been a bundle before."""

import json

from conftest import build, stack_config

from hf_roformer_lite import RoFormerLiteForMaskedLM, RoFormerLiteTokenizer
from roformer_lite.cli import main


def test_code_of_an_older_bundle_goes(tmp_path):
    """What its `auto_map` named, and what that imported; never a file outside, nor one that nothing named."""
    folder = tmp_path / "model"
    tokenizer = RoFormerLiteTokenizer.train(["one two three"] * 8, vocab_size=300)
    build(RoFormerLiteForMaskedLM, stack_config(vocab_size=len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert main(["bundle", str(folder)]) == 0
    expected = {path.name for path in folder.iterdir()}
    assert {"modeling_roformer_lite.py", "tokenization_roformer_lite.py"} <= expected

    former = {"old_heads.py": "from .old_layers import x\n", "old_layers.py": "", "old_tokenizer.py": ""}
    kept = {"own.py": "from .own_layers import x\n", "own_layers.py": "", "notes.py": "", "../outside.py": ""}
    for name, code in (former | kept).items():
        (folder / name).write_text(code)
    auto_map = {"AutoModelForMaskedLM": "old_heads.RoFormerLiteForMaskedLM", "AutoModel": "own.Own"}
    auto_map["AutoModelForCausalLM"] = "../outside.RoFormerLiteForCausalLM"
    for file, entry in (("config", auto_map), ("tokenizer_config", {"AutoTokenizer": ["old_tokenizer.Old", None]})):
        path = folder / f"{file}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": entry}))
    assert main(["bundle", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == expected | set(kept) - {"../outside.py"}
    assert (tmp_path / "outside.py").exists()
    assert json.loads((folder / "config.json").read_text())["auto_map"]["AutoModel"] == "own.Own"
