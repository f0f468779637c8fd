"""Small configurations of every source of weights, and random weights for them."""

from collections.abc import Iterator

import torch
from conftest import data_beside

from hf_roformer_lite.conversion import CONVERTERS
from hf_roformer_lite.conversion.hugging_face import HuggingFaceConverter

FILE = data_beside(__file__)
HF = FILE["groups"]["hf"]


def configurations(case: dict) -> Iterator[dict]:
    """A configuration for each class of a case, or a single one for a source without classes."""
    fields = dict(case)
    classes = fields.pop("classes", None)
    shared = {}
    for group in fields.pop("groups", ()):
        shared |= FILE["groups"][group]
    if classes is None:
        yield fields
        return
    for name in classes:
        yield {**shared, **fields, "architectures": [name]}


# Versions of transformers before 5.21 do not have UltraBERT.
CASES: dict[str, list[dict]] = {
    name: [config for case in cases for config in configurations(case)]
    for name, cases in FILE["cases"].items()
    if name in CONVERTERS or name != "ultrabert"
}
FAMILIES = [
    name for name, converter in CONVERTERS.items() if isinstance(converter, HuggingFaceConverter)
]


def source_weights(name, config):
    """Return the source's own model with random weights, and these weights."""
    torch.manual_seed(0)
    reference = CONVERTERS[name].build_reference(config).eval()
    return reference, dict(reference.state_dict())
