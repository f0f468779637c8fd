"""What a user calls a model by: a directory, or a name on the Hub. A mistyped one is refused before it is loaded."""

import difflib
import os
import sys
from functools import cache
from pathlib import Path
from threading import Thread

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled, RepositoryNotFoundError
from huggingface_hub.utils import HFValidationError, validate_repo_id

from .errors import InputError

_PATIENCE = 5.0  # seconds for the first answer of the Hub, unless HF_HUB_ETAG_TIMEOUT says otherwise
_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")
_NO_REPOSITORY = "it has no repository of this name, or none that is open to you"
_OFFLINE = "HF_HUB_OFFLINE is set"


def is_hub_name(name: str | Path) -> bool:
    """Whether a name, which is no directory, can be one on the Hub: `name` or `owner/name`, with no directory `owner`
    here."""
    name = str(name)
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    parent = os.path.dirname(name)
    return not os.path.exists(name) and not (parent and os.path.isdir(parent))


def check_directory(name: str | Path, given: str = "") -> None:
    """Refuse what is no directory.

    Args:
        name: What the user typed.
        given: How an error begins. Default: with the name.

    Raises:
        InputError: naming directories of a similar name.
    """
    if os.path.isdir(name):
        return
    given = given or str(name)
    if os.path.exists(name):
        raise InputError(f"{given}: is a file; the directory of a model is needed")
    raise InputError(f"{given}: there is no such directory{_similar(Path(name))}")


def check_model_name(name: str | Path, given: str = "") -> None:
    """Refuse what is neither a directory nor a repository that the Hub, or the cache of its files, has.

    A name that can only be a path is never looked up. Without a network the look-up ends after five seconds, or after
    `HF_HUB_ETAG_TIMEOUT`; the library alone would try again for half a minute.

    Args:
        name: What the user typed.
        given: How an error begins. Default: with the name.

    Raises:
        InputError: saying which of the two it is not.
    """
    if os.path.isdir(name):
        return
    if not is_hub_name(name):
        check_directory(name, given)
    refusal = _refusal_of_hub(str(name))
    if refusal is not None:
        raise InputError(
            f"{given or name}: there is no such directory{_similar(Path(name))}, and it cannot be had from the Hub: "
            f"{refusal}"
        )


def _similar(path: Path) -> str:
    """The directory that was probably meant, as the end of a sentence."""
    try:
        siblings = [sibling.name for sibling in path.parent.iterdir() if sibling.is_dir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.75)
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""


@cache
def _refusal_of_hub(name: str) -> str | None:
    """Why neither the Hub nor the cache has a repository; None if one of them has it."""
    patience = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or _PATIENCE)
    outcome: list[str | None] = [f"no answer within {patience:g} seconds"]
    # In a thread, because the time limit of a request counts for each address of a host, and not for finding them.
    thread = Thread(target=lambda: outcome.append(_ask_hub(name, patience)), daemon=True)
    thread.start()
    thread.join(patience)
    refusal = outcome[-1]
    if refusal in (None, _NO_REPOSITORY) or not _is_cached(name):
        return refusal
    if refusal != _OFFLINE:
        print(f"{name}: the Hub gives no answer ({refusal}); its files in the cache are used", file=sys.stderr)
    return None


def _ask_hub(name: str, patience: float) -> str | None:
    try:
        get_hf_file_metadata(hf_hub_url(name, _FILES[0]), timeout=patience)
    except EntryNotFoundError:
        return None  # whoever loads it says what the repository lacks
    except RepositoryNotFoundError:
        return _NO_REPOSITORY
    except OfflineModeIsEnabled:
        return _OFFLINE
    except Exception as error:  # of the HTTP library, which is another one in other versions of huggingface_hub
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _is_cached(name: str) -> bool:
    return any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES)
