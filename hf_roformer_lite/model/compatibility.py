"""Supports transformers 5.19 to 5.24, which have two names for the key-value cache.

The argument is called `cache` from 5.24 on, as in this package, and `past_key_values` before.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import create_causal_mask
from transformers.utils.deprecation import deprecate_kwarg

CACHE_NAME = "past_key_values"
if "cache" in inspect.signature(create_causal_mask).parameters:
    CACHE_NAME = "cache"
# Until 5.23 the attention functions write the paged cache of continuous batching, then the layers.
ATTENTION_WRITES_PAGED_CACHE = "cache" in inspect.signature(sdpa_attention_forward).parameters

Forward = TypeVar("Forward", bound=Callable[..., Any])


def accepts_past_key_values(forward: Forward) -> Forward:
    """Make `forward` accept its `cache` under the name `past_key_values` as well. From transformers
    5.24 on, this older name is deprecated, with the warning of its own models."""

    # No version of transformers warns of a name that was deprecated in an earlier version, unless
    # the call has both names.
    version = "5.40.0" if CACHE_NAME == "cache" else "5.0.0"
    renamed = deprecate_kwarg("past_key_values", version=version, new_name="cache")(forward)
    # PEFT looks for the older name among the parameters.
    signature = inspect.signature(forward)
    parameters = list(signature.parameters.values())
    older_name = inspect.Parameter("past_key_values", inspect.Parameter.KEYWORD_ONLY, default=None)
    parameters.insert(len(parameters) - 1, older_name)  # The last one is **kwargs.
    renamed.__signature__ = signature.replace(parameters=parameters)
    return renamed


def update_cache(
    cache: Any,
    key: torch.Tensor,
    value: torch.Tensor,
    layer_idx: int,
    kwargs: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add keys and values to a cache, and return all keys and values for the attention function.

    Args:
        kwargs: Further arguments of the attention function. A paged cache changes them in place.
    """
    if ATTENTION_WRITES_PAGED_CACHE and isinstance(cache, PagedAttentionCache):
        kwargs["cache"] = cache
        return key, value
    return cache.update(key, value, layer_idx, kwargs=kwargs)
