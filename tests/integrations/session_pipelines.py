"""Run by test_hub.py in an interpreter that cannot import the package: `pipeline` answers as where it is installed.

python -I -S session_pipelines.py FOLDER SITE_PACKAGES [...]
"""

import json
import sys
from pathlib import Path

sys.path += sys.argv[2:]
sys.modules["hf_roformer_lite"] = None  # wherever it may be installed

from transformers import pipeline  # noqa: E402

for name, (text, expected) in json.loads((Path(sys.argv[1]) / "pipelines.json").read_text("utf-8")).items():
    opened = pipeline(model=name, trust_remote_code=True)  # the Hub says for which task
    assert type(opened.model).__module__.startswith("transformers_modules.")
    answer = opened(text, **({"do_sample": False} if name == "me/causal" else {}))
    assert json.loads(json.dumps(answer, default=float)) == expected, (name, answer, expected)
