"""The OpenAPI document, by hand: it says what holds for the index that is served, down to its dimensions."""

from typing import Any

from bidr.index.filters import COMBINING, LONGEST_NAME
from bidr.serve.asked import LARGEST
from bidr.serve.documents import LONGEST_ID, largest_stored
from bidr.serve.limits import Limits
from bidr.serve.options import HEAVIEST, OPTIONS, K
from bidr.serve.served import Serving

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
    429: "More requests than one client may send: try again after Retry-After seconds.",
    500: "A fault of the server.",
    503: "Too much to do: try again after Retry-After seconds.",
    504: "The time for the request is over.",
}


def document(serving: Serving, limits: Limits, *, keys: bool) -> Schema:
    """The whole document."""
    found: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "bidr",
            "version": "1",
            "description": "Search in which codes in RAM find candidates and vectors on disk decide.",
        },
        "paths": {
            "/v1/search": {"post": _search(serving, limits)},
            "/v1/documents": _documents(serving, limits),
            "/v1/index": {"get": _get("What is served.", _index())},
            "/livez": {"get": _get("Whether the process lives.", _object({"status": {"const": "live"}}), health=True)},
            "/readyz": {"get": _ready()},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "schemas": {"Filter": _filter(), "Answer": _answer(), "Error": _error()},
            "responses": {str(status): _refusal(status) for status in ERRORS},
        },
    }
    if keys:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
        for path in ("/livez", "/readyz"):
            found["paths"][path]["get"]["security"] = []
    return found


def _object(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _or_null(schema: Schema) -> Schema:
    """The same, or null: by its type where it has one, which tools negate better than alternatives."""
    if "const" in schema:
        return {**{key: value for key, value in schema.items() if key != "const"}, "enum": [schema["const"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def _whole(most: int | None = None, default: int | None = None, least: int = 1) -> Schema:
    found: Schema = {"type": "integer", "minimum": least}
    if most is not None:
        found["maximum"] = most
    return found | ({"default": default} if default is not None else {})


def _vector(dim: int, largest: float = LARGEST) -> Schema:
    number = {"type": "number", "minimum": -largest, "maximum": largest}
    return {"type": "array", "items": number, "minItems": dim, "maxItems": dim}


def _responses(schema: Schema, *statuses: int, kind: str = "application/json", example: Any = None) -> Schema:
    content: Schema = {"schema": schema} | ({"example": example} if example is not None else {})
    found: Schema = {"200": {"description": "Done.", "content": {kind: content}}}
    return found | {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}


COMMON = (400, 401, 403, 405, 422, 429, 500, 503, 504)
WITH_BODY = (*COMMON, 408, 413, 415)


def _search(serving: Serving, limits: Limits) -> Schema:
    dim, default = serving.dim, min(serving.candidates, limits.candidates)
    vectors = {"type": "array", "items": _vector(dim), "minItems": 1, "maxItems": limits.queries}
    text = {"type": "string", "pattern": r"\S", "minLength": 1, "maxLength": limits.characters}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": limits.queries}
    model: Schema = {"const": serving.fingerprint, "description": "Fingerprint of the model that made the vectors."}
    options: Schema = {
        "k": _whole(limits.k, min(K, limits.k)) | {"description": "Answers to a query."},
        "candidates": _whole(limits.candidates, default) | {"description": "How many documents are ranked by vectors."},
        "filter": _filter(),
        "text": {"type": "boolean", "default": True, "description": "Whether answers have title and text."},
        "codes_only": {"type": "boolean", "default": False, "description": "The ranking of the codes alone."},
        "model": model,
    }
    body = {name: _or_null(each) for name, each in options.items()}
    kinds = [_object({"vectors": vectors, **body, **_words(0)}, optional=OPTIONS)]
    example: Schema = {"vectors": [[round(1 / dim, 6)] * dim], "k": 3, "candidates": default}
    if serving.service is not None:
        by_words = _words(limits.candidates if serving.words else 0)
        kinds.insert(0, _object({"texts": texts, **body, **by_words}, optional=OPTIONS))
        example = {"texts": ["who painted the night watch"], "k": 3, "candidates": default}
    shown = [name for name in options if name != "filter" and (name != "model" or serving.fingerprint)]
    parameters = [{"name": name, "in": "query", "required": False, "schema": options[name]} for name in shown]
    size = 4 * dim
    return {
        "operationId": "search",
        "summary": "The best documents for each query.",
        "description": f"Queries in words or as vectors; or as float32 rows, little-endian, of {size} bytes each "
        f"(up to {limits.queries}, finite numbers), with everything else in the query string (a filter as JSON). "
        f"All queries together may have {limits.answers} answers and {limits.reads} candidates.",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": kinds}, "example": example},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": _responses(_found(), *WITH_BODY, 409),
    }


def _words(most: int) -> Schema:
    weight = {"type": "number", "minimum": -HEAVIEST, "maximum": HEAVIEST, "default": 0}
    said = "How many documents words (BM25) add to the candidates; only by texts, on an index built with words."
    return {
        "lexical": _or_null(_whole(most, 0, least=0) | {"description": said}),
        "lexical_weight": _or_null(weight | {"description": "Weight of BM25's share in the score."}),
    }


def _found() -> Schema:
    steps = ("encode", "candidates", "reads", "ranking", "total")
    result = _object(
        {
            "answers": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}},
            "timings": _object({step: {"type": "number", "minimum": 0} for step in steps})
            | {"description": "Milliseconds of each step; of a query among several its share."},
        }
    )
    return _object({"results": {"type": "array", "items": result}, "generation": _whole()})


def _answer() -> Schema:
    number: Schema = {"type": "number"}
    return _object(
        {
            "rank": _whole() | {"description": "Final place, by the vectors."},
            "id": {"type": "string"},
            "score": number,
            "candidate_rank": _whole(least=0)
            | {"description": "Place among the candidates, by the codes; 0: the words alone found it."},
            "candidate_score": number,
            "word_rank": _whole(least=0) | {"description": "Place by the words; 0: not asked, or not among them."},
            "title": _or_null({"type": "string"}),
            "text": _or_null({"type": "string"}),
            "attributes": _or_null({"type": "object"}),
        }
    )


def _documents(serving: Serving, limits: Limits) -> Schema:
    name: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_ID}
    attribute: Schema = {
        "type": ["string", "boolean", "number", "array"],
        "minimum": -(2.0**62),
        "maximum": 2.0**62,
        "items": {"type": "string"},
    }
    names = {"type": "string", "pattern": f"^(?!({'|'.join(COMBINING)})$)", "minLength": 1, "maxLength": LONGEST_NAME}
    attributes = {"type": "object", "propertyNames": names, "additionalProperties": attribute}
    shown = {"id": name, "title": _or_null({"type": "string"}), "text": _or_null({"type": "string"})}
    shown["attributes"] = _or_null({"type": "object"})
    given: Schema = {"id": name, "title": {"type": "string"}, "text": {"type": "string"}}
    given["attributes"] = _or_null(attributes)
    example: Schema = {"id": "doc-1", "title": "Title", "text": "Text", "attributes": {"lang": "en", "year": 2021}}
    if serving.service is None:
        given["vector"] = _vector(serving.dim, largest_stored(serving))
        example["vector"] = [round(1 / serving.dim, 6)] * serving.dim
    several = {"type": "array", "minItems": 1, "maxItems": limits.documents}
    ids = {
        "name": "id",
        "in": "query",
        "required": True,
        "explode": True,
        "schema": several | {"items": name},
        "example": ["doc-1"],
    }
    missing = {"name": "missing_ok", "in": "query", "schema": {"type": "boolean", "default": False}}
    state = {"documents": {"type": "integer", "minimum": 0}, "generation": _whole()}
    count = {"type": "integer", "minimum": 0}
    body = _object(
        {
            "documents": several | {"items": _object(given, optional=("title", "text", "attributes"))},
            "replace": {"type": "boolean", "default": True, "description": "Replace what has the same id."},
        },
        optional=("replace",),
    )
    return {
        "get": {
            "operationId": "fetch",
            "summary": "Documents by id.",
            "parameters": [ids],
            "responses": _responses(
                _object(
                    {
                        "documents": {"type": "array", "items": _object(shown)},
                        "missing": {"type": "array", "items": {"type": "string"}},
                    }
                ),
                *COMMON,
            ),
        },
        "post": {
            "operationId": "add",
            "summary": "Add documents, or replace those of the same ids, in one commit: durable when answered.",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": body, "example": {"documents": [example]}}},
            },
            "responses": _responses(_object({**state, "added": count, "replaced": count}), *WITH_BODY, 409),
        },
        "delete": {
            "operationId": "remove",
            "summary": "Delete documents by id, all or none: durable when answered.",
            "parameters": [ids, missing],
            "responses": _responses(_object({**state, "deleted": count}), *COMMON, 404),
        },
    }


def _filter() -> Schema:
    scalar: Schema = {"type": ["string", "number", "boolean"]}
    this = {"$ref": "#/components/schemas/Filter"}

    def bounds(kind: str) -> Schema:
        sides = {side: {"type": kind} for side in ("gt", "gte", "lt", "lte")}
        return {"type": "object", "properties": sides, "minProperties": 1, "additionalProperties": False}

    several = {"type": "array", "items": this, "minItems": 1}
    return {
        "type": "object",
        "description": "Conditions by attribute, all of which must hold.",
        "minProperties": 1,
        "properties": {"and": several, "or": several, "not": this},
        "additionalProperties": {
            "anyOf": [
                scalar,
                _object({"any": {"type": "array", "items": scalar, "minItems": 1}}),
                bounds("number"),
                bounds("string"),
            ],
        },
        "examples": [{"lang": "en", "year": {"gte": 2020}}, {"or": [{"tag": {"any": ["a", "b"]}}, {"not": {"n": 1}}]}],
    }


def _index() -> Schema:
    count = {"type": "integer", "minimum": 0}
    pair = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    return _object(
        {
            "name": {"type": "string"},
            "documents": count,
            "dim": count,
            "code_bytes": count,
            "engine": {"type": "string"},
            "ram_bytes": count,
            "ram_bytes_per_document": {"type": "number"},
            "disk_bytes": count,
            "model": _or_null({"type": "string"}),
            "generation": count,
            "segments": count,
            "candidates": count,
            "recall_curve": _or_null({"type": "array", "items": pair}),
            "limits": {"type": "object", "additionalProperties": {"type": "number"}},
            "texts": {"type": "boolean"},
            "words": {"type": "boolean"},
            "behind": {"type": "boolean"},
        }
    )


def _ready() -> Schema:
    told = _object(
        {
            "status": {"enum": ["starting", "ready", "behind", "draining"]},
            "generation": _whole(),
            "documents": {"type": "integer", "minimum": 0},
            "model": _or_null({"type": "string"}),
            "trouble": _or_null({"type": "string"}),
        }
    )
    found = _get("Whether requests are answered, and what with.", told, health=True)
    found["responses"]["503"] = {
        "description": "Starting, or draining.",
        "content": {"application/json": {"schema": told}},
    }
    return found


def _metrics() -> Schema:
    found = _get("Numbers for Prometheus.", {"type": "string"})
    found["responses"] |= _responses({"type": "string"}, kind="text/plain")
    return found


def _get(summary: str, schema: Schema, *, health: bool = False) -> Schema:
    return {"summary": summary, "responses": _responses(schema, *((405, 500) if health else COMMON))}


def _error() -> Schema:
    text = _or_null({"type": "string"})
    told = {"type": {"type": "string"}, "message": {"type": "string"}, "given": text, "expected": text, "hint": text}
    return _object({"error": _object(told)})


def _refusal(status: int) -> Schema:
    found: Schema = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return found
