"""What every section of the settings is made of: a base, keys with their meaning, and the sources that keys cite."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

PAPER = "EMPO2, arXiv 2602.23008"
RELEASE = "EMPO2 release 0b40cb72"


def key(default: Any, doc: str, source: str = "", **limits: Any) -> Any:
    """A setting: its default, its meaning, and where the value comes from."""
    extra: dict[str, Any] | None = {"source": source} if source else None
    if callable(default):
        return Field(default_factory=default, description=doc, json_schema_extra=extra, **limits)
    return Field(default, description=doc, json_schema_extra=extra, **limits)


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
