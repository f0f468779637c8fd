"""Run in an interpreter that cannot import the package: bundles open all the same.

    python -I -S session_without_package.py saved|hub FOLDER SITE_PACKAGES [...]

FOLDER holds `expected.json`, what the installed classes said of the same weights; for `saved` the
bundles; for `hub` `pipelines.json`, what their pipelines said.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(sys.argv[2])
sys.path += sys.argv[3:]

sys.modules["hf_roformer_lite"] = None  # wherever it may be installed

import torch  # noqa: E402
import transformers  # noqa: E402

AUTO_MODELS = {
    "encoder": "AutoModelForMaskedLM",
    "再次": "AutoModelForMaskedLM",
    "pair": "AutoModelForSeq2SeqLM",
    "reference_layers": "AutoModelForSequenceClassification",
    "tag_scores": "AutoModelForSequenceClassification",
}
EXPECTED = json.loads((FOLDER / "expected.json").read_text("utf-8"))


def load(auto: str, name: str):
    """What an Auto class makes of a bundle."""
    place = name if sys.argv[1] == "hub" else FOLDER / name
    part = getattr(transformers, auto).from_pretrained(place, trust_remote_code=True)
    assert type(part).__module__.startswith("transformers_modules.")
    return part


@torch.no_grad()
def answers(name: str) -> list:
    """Numbers of the bundle `name`: of a tokenizer alone, of a pair, of an encoder with its
    head."""
    if name == "words":
        return load("AutoTokenizer", name)(EXPECTED["texts"])["input_ids"]
    auto = AUTO_MODELS[name.rpartition("/")[2]]
    model, tokenizer = load(auto, name), load("AutoTokenizer", name)
    inputs = tokenizer(EXPECTED["texts"], padding=True, return_tensors="pt")
    if auto == "AutoModelForSeq2SeqLM":
        return model.generate(**inputs, max_new_tokens=6, num_beams=2).tolist()
    return model(**inputs).logits.tolist()


def save_again() -> None:
    for name in ("encoder", "pair"):
        for auto, reference in json.loads((FOLDER / name / "config.json").read_text())[
            "auto_map"
        ].items():
            assert type(load(auto, name)).__name__ == reference.partition(".")[2]

    # Saved by what was loaded, twice, also in a folder whose name is not in ASCII: all of it is
    # still there.
    for before, after in (("encoder", "again"), ("again", "再次")):
        load("AutoModelForMaskedLM", before).save_pretrained(FOLDER / after)
        load("AutoTokenizer", before).save_pretrained(FOLDER / after)
        assert {path.name for path in (FOLDER / after).iterdir()} == {
            p.name for p in (FOLDER / "encoder").iterdir()
        }
    assert answers("再次") == EXPECTED["answers"]["encoder"]
    assert (
        load("AutoConfig", "again").auto_map
        == load("AutoModelForTokenClassification", "encoder").config.auto_map
    )
    # with the code of all that it can be
    load("AutoModel", "encoder").save_pretrained(FOLDER / "smaller")
    assert type(load("AutoModelForMaskedLM", "smaller")).__name__ == "RoFormerLiteForMaskedLM"

    # A pair's encoder is an encoder.
    encoder = load("AutoModelForSeq2SeqLM", "pair").get_encoder()
    encoder.save_pretrained(FOLDER / "stack", remote_code=True)
    opened = load("AutoModelForMaskedLM", "stack").model
    assert all(
        torch.equal(a, b) for a, b in zip(encoder.parameters(), opened.parameters(), strict=True)
    )


def ask_pipelines() -> None:
    for name, (text, expected) in json.loads(
        (FOLDER / "pipelines.json").read_text("utf-8")
    ).items():
        # the Hub says for which task
        opened = transformers.pipeline(model=name, trust_remote_code=True)
        assert type(opened.model).__module__.startswith("transformers_modules.")
        answer = opened(text, **({"do_sample": False} if name == "me/causal" else {}))
        assert json.loads(json.dumps(answer, default=float)) == expected, (name, answer, expected)


if __name__ == "__main__":
    for bundle, expected in EXPECTED["answers"].items():
        assert answers(bundle) == expected, bundle
    save_again() if sys.argv[1] == "saved" else ask_pipelines()
    assert not any(
        module and name.startswith("hf_roformer_lite") for name, module in sys.modules.items()
    )
