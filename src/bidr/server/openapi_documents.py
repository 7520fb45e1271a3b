"""What the OpenAPI document says of /v1/documents."""

from bidr.data.attributes import COMBINING, LONGEST_NAME
from bidr.server.document_endpoint import LARGEST_NUMBER, LONGEST_ID, get_max_component
from bidr.server.index_holder import IndexSnapshot
from bidr.server.limits import RequestLimits
from bidr.server.openapi_parts import COMMON, WITH_BODY, Schema, an_object, or_null, responses, vector, whole

ID: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_ID}
COUNT: Schema = {"type": "integer", "minimum": 0}
STATE: Schema = {"documents": COUNT, "generation": whole()}


def documents_paths(serving: IndexSnapshot, limits: RequestLimits) -> Schema:
    """By method."""
    several: Schema = {"type": "array", "minItems": 1, "maxItems": limits.documents}
    ids = {
        "name": "id",
        "in": "query",
        "required": True,
        "explode": True,
        "schema": several | {"items": ID},
        "example": ["doc-1"],
    }
    missing = {"name": "missing_ok", "in": "query", "schema": {"type": "boolean", "default": False}}
    return {
        "get": {
            "operationId": "fetch",
            "summary": "Documents by id.",
            "parameters": [ids],
            "responses": responses(_fetched(), *COMMON),
        },
        "post": {
            "operationId": "add",
            "summary": "Add documents, or replace those of the same ids, in one commit: durable when answered.",
            "requestBody": {"required": True, "content": {"application/json": _added(serving, several)}},
            "responses": responses(an_object({**STATE, "added": COUNT, "replaced": COUNT}), *WITH_BODY, 409),
        },
        "delete": {
            "operationId": "remove",
            "summary": "Delete documents by id, all or none: durable when answered.",
            "parameters": [ids, missing],
            "responses": responses(an_object({**STATE, "deleted": COUNT}), *COMMON, 404),
        },
    }


def _fetched() -> Schema:
    shown = {"id": ID, "title": or_null({"type": "string"}), "text": or_null({"type": "string"})}
    shown["attributes"] = or_null({"type": "object"})
    missing = {"type": "array", "items": {"type": "string"}}
    return an_object({"documents": {"type": "array", "items": an_object(shown)}, "missing": missing})


def _added(serving: IndexSnapshot, several: Schema) -> Schema:
    """The body that adds, with an example."""
    given: Schema = {"id": ID, "title": {"type": "string"}, "text": {"type": "string"}}
    given["attributes"] = or_null(_attributes())
    example: Schema = {"id": "doc-1", "title": "Title", "text": "Text", "attributes": {"lang": "en", "year": 2021}}
    if serving.service is None:
        given["vector"] = vector(serving.dim, get_max_component(serving))
        example["vector"] = [round(1 / serving.dim, 6)] * serving.dim
    body = an_object(
        {
            "documents": several | {"items": an_object(given, optional=("title", "text", "attributes"))},
            "replace": {"type": "boolean", "default": True, "description": "Replace what has the same id."},
        },
        optional=("replace",),
    )
    return {"schema": body, "example": {"documents": [example]}}


def _attributes() -> Schema:
    attribute: Schema = {
        "type": ["string", "boolean", "number", "array"],
        "minimum": -float(LARGEST_NUMBER),
        "maximum": float(LARGEST_NUMBER),
        "items": {"type": "string"},
    }
    names = {"type": "string", "pattern": f"^(?!({'|'.join(COMBINING)})$)", "minLength": 1, "maxLength": LONGEST_NAME}
    return {"type": "object", "propertyNames": names, "additionalProperties": attribute}
