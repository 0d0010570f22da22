"""What the JSON of verdicts is held to: python_inspector/data/*.schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from referencing import Registry, Resource

FOLDER = Path(__file__).parents[2] / "python_inspector/data"
KNOWN = {
    path.name: json.loads(path.read_text())
    for path in FOLDER.glob("*.schema.json")
    if path.name != "recording.schema.json"
}
REGISTRY: Registry[Any] = Registry().with_resources(
    (name, Resource.from_contents(schema)) for name, schema in KNOWN.items()
)


def valid(made: Any, schema: str) -> Any:
    """`made`, which is as `schema`.schema.json says once it has been JSON."""
    text = json.dumps(made, allow_nan=False)
    validator = jsonschema.Draft202012Validator(KNOWN[f"{schema}.schema.json"], registry=REGISTRY)
    validator.validate(json.loads(text))
    return made
