"""JSON Schema of the config, by which editors complete and check TOML files."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from trailnotes.config.former import RENAMED_KEYS
from trailnotes.config.methods import list_names
from trailnotes.config.schema import full_config_type


class _TomlSchema(GenerateJsonSchema):
    """Schema of values as TOML writes them: null, which it lacks, is the word "none"."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return {"anyOf": [self.generate_inner(schema["schema"]), {"const": "none"}]}

    def encode_default(self, dft: Any) -> Any:
        return "none" if dft is None else super().encode_default(dft)


def render_json_schema() -> str:
    """Render the schema as JSON: former keys are accepted as deprecated, and no part refers to another.

    Not all programs that read `#:schema` follow references.
    """
    made = full_config_type().model_json_schema(schema_generator=_TomlSchema)
    defs = made.pop("$defs")
    schema = {"$schema": _TomlSchema.schema_dialect, **_simplify(made, defs), "title": "Settings of Trailnotes"}
    sections = {name: each.get("properties", {}) for name, each in schema["properties"].items()}
    own = {"type": "string", "pattern": ":"}  # module:NAME
    sections["algorithm"]["name"] |= {"anyOf": [{"enum": list_names()}, own]}
    for former, present in RENAMED_KEYS.items():
        (section, _, name), (new_section, _, new_name) = former.partition("."), present.partition(".")
        about = {"description": f"former name of {present}", "deprecated": True, "x-taplo": {"hidden": True}}
        sections[section][name] = sections[new_section][new_name] | about
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _simplify(node: Any, defs: dict[str, Any]) -> Any:
    """Put definitions in the place of references, leave out titles, and add sources to descriptions."""
    if isinstance(node, list):
        return [_simplify(item, defs) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = defs[node["$ref"].rpartition("/")[2]] | {name: node[name] for name in node if name != "$ref"}
    if isinstance(node.get("source"), str):
        node = node | {"description": f"{node['description']} ({node['source']})"}
    return {name: _simplify(value, defs) for name, value in node.items() if name not in {"title", "source", "needs"}}
