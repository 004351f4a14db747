"""The API's own description (OpenAPI 3.1), made from the types that are answered."""

from typing import Any

import msgspec

from swarmtrain.page.history import EventRow
from swarmtrain.page.view import PeerRow, RoundColumns, RunView


class Told(msgspec.Struct):
    """The story of a round; `stages` where the model is cut into stages."""

    round: int
    story: list[str]
    stages: list[dict[str, Any]] = []


class Refused(msgspec.Struct):
    """A request that is not answered, and what to do."""

    error: str


_ANSWERS: dict[str, tuple[str, Any]] = {
    "/api/v1/run": ("The run now", RunView),
    "/api/v1/peers": ("Peers that are in", list[PeerRow]),
    "/api/v1/rounds": ("Ended rounds as columns", RoundColumns),
    "/api/v1/rounds/{number}": ("The story of a round", Told),
    "/api/v1/events": ("What happened, the oldest first", list[EventRow]),
}
_QUERIES = {
    "/api/v1/rounds/{number}": ("group",),
    "/api/v1/rounds": ("first", "points"),
    "/api/v1/events": ("after", "count"),
}
_CSV = ("/api/v1/peers", "/api/v1/rounds", "/api/v1/events")


def _described() -> dict[str, Any]:
    types = [one for _, one in _ANSWERS.values()] + [Refused]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    refused: dict[str, Any] = {"content": {"application/json": {"schema": schemas[-1]}}}
    refusals: dict[str, Any] = {
        code: {"description": text, **refused}
        for code, text in (
            ("400", "A parameter is no whole number"), ("401", "No viewing link"),
            ("403", "From another site"), ("404", "There is no such round"),
            ("503", "Too much at once; try again"),
        )
    }  # fmt: skip
    paths: dict[str, Any] = {}
    for (path, (text, _)), schema in zip(_ANSWERS.items(), schemas, strict=False):
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        if path in _CSV:
            content["text/csv"] = {"schema": {"type": "string"}}
        paths[path] = {
            "get": {
                "summary": text,
                "parameters": [*_parameters(path)],
                "responses": {"200": {"description": text, "content": content}, **refusals},
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "swarmtrain: a run", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"link": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"link": []}],
    }


def _parameters(path: str) -> list[dict[str, Any]]:
    number = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
    found: list[dict[str, Any]] = []
    if "{number}" in path:
        found.append({"name": "number", "in": "path", "required": True, "schema": number})
    found += [{"name": name, "in": "query", "schema": number} for name in _QUERIES.get(path, ())]
    if path in _CSV:
        form = {"type": "string", "enum": ["json", "csv"]}
        found.append({"name": "format", "in": "query", "schema": form})
    return found


OPENAPI = _described()
