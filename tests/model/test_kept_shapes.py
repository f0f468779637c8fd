"""What oneDNN keeps of the shapes that it has compiled is bounded, or memory grows with every new length."""

import os
import subprocess
import sys

import pytest

from hf_roformer_lite.model.torch_internals import CACHED_SHAPES, onednn_linear

NAMES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
# 74 shapes, each a multiple of what rows are rounded up to, and then the first one again.
CODE = """
import os, torch
from hf_roformer_lite.model.fast_linear import fast_linear
print("set:", *(os.environ[name] for name in {names!r}))
weight = torch.zeros(512, 512)
rows = [*range(512, 1024, 16), *range(1024, 2048, 32), *range(2048, 2688, 64)]
with torch.no_grad():
    for n in [*rows, 512]:
        fast_linear(torch.zeros(n, 512), weight)
"""


@pytest.mark.slow
@pytest.mark.skipif(onednn_linear is None, reason="this torch is built without oneDNN")
@pytest.mark.parametrize(("given", "set_to", "last"), [(None, CACHED_SHAPES, "miss"), ("1024", "1024", "hit")])
def test_the_oldest_shape_is_dropped(given, set_to, last):
    """In a process that says nothing; one that says what it wants gets that."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"ONEDNN_VERBOSE": "profile_create"} | (dict.fromkeys(NAMES, given) if given else {})
    command = [sys.executable, "-c", CODE.format(names=NAMES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert f"set: {set_to} {set_to}" in done.stdout
    made = [line for line in done.stdout.splitlines() if ",create:cache_" in line]
    if not made:
        pytest.skip("this processor has no kernels of oneDNN, or this torch does not report them")
    assert f",create:cache_{last}," in made[-1]
