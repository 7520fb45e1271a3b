"""Pieces that the OpenAPI document is made of."""

from typing import Any

from bidr.server.search_request import LARGEST

Schema = dict[str, Any]
ERRORS = {
    400: "The request cannot be read.",
    401: "A key is needed, or it is not known.",
    403: "Not allowed: with this key, or on this server.",
    404: "Not there.",
    405: "No such method.",
    408: "The body did not arrive in time.",
    409: "The index is not what the request takes it for.",
    413: "The body is too large.",
    415: "A body of another type.",
    422: "A value that cannot work.",
    431: "The head of the request is too large.",
    429: "More requests than one client may send: try again after Retry-After seconds.",
    500: "A fault of the server.",
    501: "A transfer coding other than chunked.",
    503: "Too much to do: try again after Retry-After seconds.",
    504: "The time for the request is over.",
}


def an_object(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def or_null(schema: Schema) -> Schema:
    """The same, or null: by its type where it has one, which tools negate better than alternatives."""
    if "const" in schema:
        return {**{key: value for key, value in schema.items() if key != "const"}, "enum": [schema["const"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def whole(most: int | None = None, default: int | None = None, least: int = 1) -> Schema:
    found: Schema = {"type": "integer", "minimum": least}
    if most is not None:
        found["maximum"] = most
    return found | ({"default": default} if default is not None else {})


def vector(dim: int, largest: float = LARGEST) -> Schema:
    number = {"type": "number", "minimum": -largest, "maximum": largest}
    return {"type": "array", "items": number, "minItems": dim, "maxItems": dim}


def responses(schema: Schema, *statuses: int, kind: str = "application/json", example: Any = None) -> Schema:
    content: Schema = {"schema": schema} | ({"example": example} if example is not None else {})
    found: Schema = {"200": {"description": "Done.", "content": {kind: content}}}
    return found | {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}


HEALTH = (400, 403, 405, 429, 431, 500, 501, 503)
COMMON = (*HEALTH, 401, 422, 504)
WITH_BODY = (*COMMON, 408, 413, 415)


def getting(summary: str, schema: Schema, *, health: bool = False) -> Schema:
    return {"summary": summary, "responses": responses(schema, *(HEALTH if health else COMMON))}


def error_body() -> Schema:
    text = or_null({"type": "string"})
    told = {"type": {"type": "string"}, "message": {"type": "string"}, "given": text, "expected": text, "hint": text}
    return an_object({"error": an_object(told)})


def refusal(status: int) -> Schema:
    found: Schema = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return found
