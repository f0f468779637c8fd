"""Open bundles in an interpreter that cannot import the package.

    python -I -S session_without_package.py FOLDER SITE_PACKAGES [...]

FOLDER contains the bundles, and `expected.json` with the outputs of the installed classes for the
same weights.
"""

import json
import os
import sys
from pathlib import Path

FOLDER = Path(sys.argv[1])
sys.path += sys.argv[2:]

# This makes every import of the package fail, wherever it may be installed.
sys.modules["hf_roformer_lite"] = None

import torch  # noqa: E402
import transformers  # noqa: E402

AUTO_MODELS = {
    "encoder": "AutoModelForMaskedLM",
    "再次": "AutoModelForMaskedLM",
    "pair": "AutoModelForSeq2SeqLM",
    "reference_layers": "AutoModelForSequenceClassification",
}
EXPECTED = json.loads((FOLDER / "expected.json").read_text("utf-8"))


def load(auto: str, name: str):
    """Load a bundle with an Auto class, and check that its own code was used."""
    part = getattr(transformers, auto).from_pretrained(FOLDER / name, trust_remote_code=True)
    assert type(part).__module__.startswith("transformers_modules.")
    return part


@torch.no_grad()
def answers(name: str) -> list:
    """Compute token ids, generated tokens or logits, whichever the bundle `name` can give."""
    if name == "words":
        return load("AutoTokenizer", name)(EXPECTED["texts"])["input_ids"]
    auto = AUTO_MODELS[name]
    model = load(auto, name)
    tokenizer = load("AutoTokenizer", name)
    inputs = tokenizer(EXPECTED["texts"], padding=True, return_tensors="pt")
    if auto == "AutoModelForSeq2SeqLM":
        return model.generate(**inputs, max_new_tokens=6, num_beams=2).tolist()
    return model(**inputs).logits.tolist()


def save_again() -> None:
    for name in ("encoder", "pair"):
        config = json.loads((FOLDER / name / "config.json").read_text())
        for auto, reference in config["auto_map"].items():
            assert type(load(auto, name)).__name__ == reference.partition(".")[2]

    # A bundle is still complete after it was loaded and saved twice. The name of the second folder
    # is not ASCII.
    original_files = set(os.listdir(FOLDER / "encoder"))
    for before, after in (("encoder", "again"), ("again", "再次")):
        load("AutoModelForMaskedLM", before).save_pretrained(FOLDER / after)
        load("AutoTokenizer", before).save_pretrained(FOLDER / after)
        assert set(os.listdir(FOLDER / after)) == original_files
    assert answers("再次") == EXPECTED["answers"]["encoder"]
    assert (
        load("AutoConfig", "again").auto_map
        == load("AutoModelForTokenClassification", "encoder").config.auto_map
    )
    # A model without a head is saved with the code of all heads.
    load("AutoModel", "encoder").save_pretrained(FOLDER / "smaller")
    assert type(load("AutoModelForMaskedLM", "smaller")).__name__ == "RoFormerLiteForMaskedLM"

    # The encoder of a pair can be saved as a model of its own.
    encoder = load("AutoModelForSeq2SeqLM", "pair").get_encoder()
    encoder.save_pretrained(FOLDER / "stack", remote_code=True)
    opened = load("AutoModelForMaskedLM", "stack").model
    assert all(
        torch.equal(a, b) for a, b in zip(encoder.parameters(), opened.parameters(), strict=True)
    )


if __name__ == "__main__":
    for bundle, expected in EXPECTED["answers"].items():
        assert answers(bundle) == expected, bundle
    save_again()
    tokenizer = load("AutoTokenizer", "encoder")
    new = tokenizer.train_new_from_iterator(["another text"], 300)
    assert type(new) is type(tokenizer)
    assert not any(
        module and name.startswith("hf_roformer_lite") for name, module in sys.modules.items()
    )
