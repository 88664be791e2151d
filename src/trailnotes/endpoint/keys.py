"""The API key of a server: from the environment alone, and never in a message."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from trailnotes.errors import ConfigError

if TYPE_CHECKING:
    from trailnotes.config.model_schema import EndpointConfig

NO_KEY: Final = "none"  # what is sent where there is no key: the client insists on one


def load_api_key(config: EndpointConfig) -> str:
    """Load the key, "" for none.

    Raises:
        ConfigError: a key is surely needed and missing, or it holds blanks or odd letters.
    """
    key = os.environ.get(config.api_key_env, "").strip()
    if not key and "//api.openai.com" in config.base_url:
        raise ConfigError(
            f"{config.base_url} wants a key: export {config.api_key_env}=..., or name another environment variable in "
            "endpoint.api_key_env, or another server in endpoint.base_url"
        )
    if not key.isascii() or any(map(str.isspace, key)):
        raise ConfigError(f"the environment variable {config.api_key_env} holds no key: it has blanks or odd letters")
    return key


def redact_key(key: str, text: str) -> str:
    """Replace the key in `text`, which servers may repeat in other cases."""
    return re.sub(re.escape(key), "[key]", text, flags=re.IGNORECASE) if key else text
