"""The Hugging Face hub, asked once, before transformers asks many times and waits in between."""

from __future__ import annotations

import functools
import logging

import huggingface_hub
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from trailnotes.errors import PolicyError

logger = logging.getLogger(__name__)
REQUEST_TIMEOUT = 20.0  # seconds for the one request


@functools.cache
def is_cache_only(name: str) -> bool:
    """Whether the model of that name is to be read from the cache alone, since the hub is out of reach or not wanted.

    Raises:
        PolicyError: the hub has no such model, or cannot be reached while the cache has none either.
    """
    cached = isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str)
    if constants.HF_HUB_OFFLINE:
        return True
    try:
        HfApi().model_info(name, timeout=REQUEST_TIMEOUT)
    except HfHubHTTPError as error:
        raise PolicyError(
            f"model.path = {name!r} is no directory here, and the hub does not give a model of that name (status "
            f"{error.response.status_code}): correct it, or log in (HF_TOKEN) where the model asks for it"
        ) from error
    except Exception as error:  # the boundary: clients of the network raise errors of many libraries
        if cached:
            logger.warning("the hub cannot be reached: %s is read from the cache", name)
            return True
        raise PolicyError(
            f"model.path = {name!r} is no directory here and not in the cache, and the hub cannot be reached "
            f"({' '.join(str(error).split())}): name a directory, or fetch the model where there is a network"
        ) from error
    if not cached:
        logger.warning("%s is not in the cache yet: fetching it from the hub to %s", name, constants.HF_HUB_CACHE)
    return False
