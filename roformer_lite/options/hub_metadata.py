"""What the Hub accepts in the metadata of a model card, checked without the Hub.

The check of huggingface_hub asks the Hub. A training may run offline, and should not end with a
card that the Hub does not take.
"""

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import InputError, did_you_mean, require_packages

# The identifiers in https://huggingface.co/docs/hub/repositories-licenses.
LICENSES = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m
    bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear
    bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0
    cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0
    cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0
    creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2
    fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 grok2-community h-research
    intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3
    llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openmdw-1.0 openmdw-1.1 openrail
    openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
    """.split()
)


def check_languages(codes: Iterable[str]) -> None:
    """Reject languages that are not ISO 639 codes.

    Raises:
        InputError: with the code.
    """
    require_packages("--language", ["datasets"])
    package: Any = find_spec("datasets")
    # No function of the package returns its list. The package itself would take long to import.
    path = Path(package.origin).parent / "utils" / "resources" / "languages.json"
    # The Hub also has names for text in several languages and for programming languages.
    known = {"multilingual", "code", *json.loads(path.read_text("utf-8"))}
    for code in codes:
        if code not in known:
            raise InputError(
                f"--language {code}: the Hub takes ISO 639 codes in lower case, such as en, de, zh "
                "or ja, and multilingual"
            )


def check_license(name: str) -> None:
    """Reject a licence that the Hub does not know.

    Raises:
        InputError: with the licence.
    """
    if name not in LICENSES:
        raise InputError(
            f"--license {name}: not one of the licences in "
            "https://huggingface.co/docs/hub/repositories-licenses, such as apache-2.0, mit or "
            f"other{did_you_mean(name, LICENSES)}"
        )
