"""The OpenAPI document of the served index, with its dimensions and limits.

Written by hand, because most values depend on the index.
"""

from typing import Any

from bidr.data.attribute_validation import COMBINING, LONGEST_NAME
from bidr.index.live.initial_codes import FIT_DOCUMENTS
from bidr.server.document_endpoint import LISTED_DOCUMENTS, MAX_ID_CHARS, MAX_NUMBER, get_max_component
from bidr.server.index_endpoint import MAX_DIM, MAX_FIT_DOCUMENTS, PREFIX
from bidr.server.index_holder import IndexSnapshot
from bidr.server.limits import RequestLimits
from bidr.server.search_request import (
    COMBINATIONS,
    DEFAULT_K,
    FUSIONS,
    MAX_COMPONENT,
    MAX_LEXICAL_WEIGHT,
    MAX_SCORE,
    OPTIONS,
)

Schema = dict[str, Any]
ERRORS = {
    400: "The request is malformed.",
    401: "The key is missing or invalid.",
    403: "Not allowed with this key, or on this server.",
    404: "Not found.",
    405: "Method not allowed.",
    408: "The body did not arrive in time.",
    409: "The request does not match the state of the index.",
    413: "The body is too large.",
    415: "Unsupported content type.",
    422: "Invalid value.",
    431: "Request line and headers are too large.",
    429: "Rate limit exceeded: try again after Retry-After seconds.",
    500: "A fault of the server.",
    501: "A transfer coding other than chunked.",
    503: "Overloaded: try again after Retry-After seconds.",
    504: "The deadline of the request has passed.",
}


def make_object(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def make_nullable(schema: Schema) -> Schema:
    """Allow null, by type rather than by `anyOf`: test generators negate types better."""
    if "const" in schema:
        return {**{key: value for key, value in schema.items() if key != "const"}, "enum": [schema["const"], None]}
    if "enum" in schema:
        schema = schema | {"enum": [*schema["enum"], None]}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*types, "null"]}


def make_integer(maximum: int | None = None, default: int | None = None, minimum: int = 1) -> Schema:
    schema: Schema = {"type": "integer", "minimum": minimum}
    if maximum is not None:
        schema["maximum"] = maximum
    return schema | ({"default": default} if default is not None else {})


def make_vector(dim: int, max_component: float = MAX_COMPONENT) -> Schema:
    number = {"type": "number", "minimum": -max_component, "maximum": max_component}
    return {"type": "array", "items": number, "minItems": dim, "maxItems": dim}


def make_responses(schema: Schema, *statuses: int, content_type: str = "application/json") -> Schema:
    success: Schema = {"200": {"description": "Done.", "content": {content_type: {"schema": schema}}}}
    return success | {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}


HEALTH = (400, 403, 405, 429, 431, 500, 501, 503)
COMMON = (*HEALTH, 401, 422, 504)
WITH_BODY = (*COMMON, 408, 413, 415)


def make_get(summary: str, schema: Schema, *, health: bool = False) -> Schema:
    return {"summary": summary, "responses": make_responses(schema, *(HEALTH if health else COMMON))}


def make_error_schema() -> Schema:
    text = make_nullable({"type": "string"})
    fields = {"type": {"type": "string"}, "message": {"type": "string"}, "given": text, "expected": text, "hint": text}
    return make_object({"error": make_object(fields)})


def make_error_component(status: int) -> Schema:
    response: Schema = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return response


def make_openapi(snapshot: IndexSnapshot, limits: RequestLimits, *, keys: bool, has_reranker: bool = False) -> Schema:
    """Return the OpenAPI document; `keys`: whether the server has API keys."""
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "bidr",
            "version": "1",
            "description": "Vector search: compressed codes in RAM select candidates, full vectors on disk rank them.",
        },
        "paths": {
            "/v1/search": {"post": _make_search(snapshot, limits, has_reranker=has_reranker)},
            "/v1/documents": make_document_paths(snapshot, limits),
            **make_filtered_paths(limits),
            **make_index_paths(),
            "/v1/index": {"get": make_get("Description of the served index.", _make_index())},
            "/v1/schema": {"get": make_get("Attributes: type, number of documents, examples, range.", _make_schema())},
            "/livez": {"get": make_get("Liveness.", make_object({"status": {"const": "live"}}), health=True)},
            "/readyz": {"get": _make_readiness()},
            "/metrics": {"get": _make_metrics()},
        },
        "components": {
            "schemas": {
                "Filter": _make_filter(limits),
                "Operand": _make_operand(),
                "Answer": _make_answer(),
                "Error": make_error_schema(),
            },
            "responses": {str(status): make_error_component(status) for status in ERRORS},
        },
    }
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        for path in ("/livez", "/readyz"):
            document["paths"][path]["get"]["security"] = []
    return document


def _make_search(snapshot: IndexSnapshot, limits: RequestLimits, *, has_reranker: bool) -> Schema:
    dim, default = snapshot.dim, min(snapshot.candidates, limits.candidates)
    vectors = {"type": "array", "items": make_vector(dim), "minItems": 1, "maxItems": limits.queries}
    text = {"type": "string", "pattern": r"\S", "minLength": 1, "maxLength": limits.characters}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": limits.queries}
    model: Schema = {"const": snapshot.fingerprint, "description": "Fingerprint of the model that made the vectors."}
    options: Schema = {
        "k": make_integer(limits.k, min(DEFAULT_K, limits.k)) | {"description": "Answers to a query."},
        "candidates": make_integer(limits.candidates, default)
        | {"description": "How many documents are ranked by vectors."},
        "filter": _make_filter(limits),
        "text": {"type": "boolean", "default": True, "description": "Whether answers have title and text."},
        "codes_only": {"type": "boolean", "default": False, "description": "The ranking of the codes alone."},
        "model": model,
    }
    options |= _make_shaping(limits)
    body = {name: make_nullable(schema) for name, schema in options.items()}
    recommended = snapshot.recommended
    lexical_options = _make_lexical_options(0, 0, recommended.lexical_weight)
    like = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": limits.documents}
    bodies = [
        make_object({"vectors": vectors, **body, **lexical_options}, optional=OPTIONS),
        make_object({"like": like, **body, **lexical_options}, optional=OPTIONS),
    ]
    example: Schema = {"vectors": [[round(1 / dim, 6)] * dim], "k": 3, "candidates": default}
    if snapshot.encoder is not None:
        maximum = limits.candidates if snapshot.has_lexical else 0
        lexical_default = max(0, min(recommended.lexical, limits.candidates - default))
        lexical_options = _make_lexical_options(maximum, lexical_default, recommended.lexical_weight)
        rerank = make_integer(min(limits.k, limits.candidates) if has_reranker else 0, 0, minimum=0)
        rerank["description"] = "Best hits that the cross-encoder orders, on a server with --reranker."
        by_text = {"texts": texts, "rerank": make_nullable(rerank), **body, **lexical_options}
        bodies.insert(0, make_object(by_text, optional=("rerank", *OPTIONS)))
        example = {"texts": ["who painted the night watch"], "k": 3, "candidates": default}
    names = [name for name in options if name != "filter" and (name != "model" or snapshot.fingerprint)]
    parameters = [{"name": name, "in": "query", "required": False, "schema": options[name]} for name in names]
    description = "Dimensions of the vectors in a binary body, which could otherwise be split at the wrong places."
    dim_schema: Schema = {"type": "integer", "const": dim, "description": description}
    parameters.append({"name": "dim", "in": "query", "required": False, "schema": dim_schema})
    row_bytes = 4 * dim
    return {
        "operationId": "search",
        "summary": "The best documents for each query.",
        "description": "Queries as texts or as vectors, or documents to find more like; or as float32 rows, "
        f"little-endian, of {row_bytes} bytes each (up to {limits.queries}, finite numbers), with everything else in "
        f"the query string (a filter as JSON; `dim={dim}`, if there is more than one row). "
        f"All queries together may have {limits.answers} answers and {limits.reads} candidates.",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": bodies}, "example": example},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": make_responses(_make_search_response(), *WITH_BODY, 404, 409),
    }


def _make_shaping(limits: RequestLimits) -> Schema:
    """Return the options that act on ranked candidates."""
    score = {"type": "number", "minimum": -MAX_SCORE, "maximum": MAX_SCORE}
    return {
        "offset": make_integer(limits.candidates, 0, minimum=0) | {"description": "Best documents to skip."},
        "min_score": score | {"description": "Documents with a lower score are left out."},
        "group_by": {"type": "string", "minLength": 1, "description": "Attribute: `group_size` hits for each value."},
        "group_size": make_integer(limits.k, 1),
        "mmr": {"type": "number", "minimum": 0, "maximum": 1}
        | {"description": "Maximal marginal relevance: 1 is relevance alone, 0 diversity alone."},
        "fusion": {"type": "string", "enum": list(FUSIONS), "default": "sum"}
        | {"description": "Vectors and BM25: weighted sum of scores, or of reciprocal ranks."},
        "combine": {"type": "string", "enum": list(COMBINATIONS)}
        | {"description": "All queries are one: the maximum or the mean of their scores. Not with lexical."},
    }


def _make_lexical_options(maximum: int, default: int, default_weight: float) -> Schema:
    weight = {"type": "number", "minimum": -MAX_LEXICAL_WEIGHT, "maximum": MAX_LEXICAL_WEIGHT}
    weight["default"] = default_weight
    description = "Candidates that BM25 adds; only for texts, on an index built with --lexical."
    return {
        "lexical": make_nullable(make_integer(maximum, default, minimum=0) | {"description": description}),
        "lexical_weight": make_nullable(weight | {"description": "Weight of BM25 in the score."}),
    }


def _make_search_response() -> Schema:
    steps = ("encode", "candidates", "reads", "ranking", "total", "rerank")
    counts = ("vectors", "hits", "reads", "bytes")
    result = make_object(
        {
            "answers": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}},
            "timings": make_object({step: {"type": "number", "minimum": 0} for step in steps}, optional=("rerank",))
            | {"description": "Milliseconds of each step; the share of this query in its batch."},
            "disk": make_object({name: {"type": "number", "minimum": 0} for name in counts})
            | {"description": "Vectors ranked, those of them in memory, reads, their bytes; the share of this query."},
        }
    )
    return make_object({"results": {"type": "array", "items": result}, "generation": make_integer()})


def _make_answer() -> Schema:
    number: Schema = {"type": "number"}
    return make_object(
        {
            "rank": make_integer() | {"description": "Final rank, by the vectors."},
            "id": {"type": "string"},
            "score": number,
            "candidate_rank": make_integer(minimum=0)
            | {"description": "Rank among the candidates, by the codes; 0: found by BM25 only."},
            "candidate_score": number,
            "word_rank": make_integer(minimum=0) | {"description": "Rank by BM25; 0: none."},
            "rerank_score": make_nullable({"type": "number"}) | {"description": "Score of the cross-encoder."},
            "title": make_nullable({"type": "string"}),
            "text": make_nullable({"type": "string"}),
            "attributes": make_nullable({"type": "object"}),
        }
    )


def _make_operand() -> Schema:
    """Return the schema of what an attribute is compared with."""
    scalar: Schema = {"type": ["string", "number", "boolean"]}
    operators: Schema = {
        "any": {"type": "array", "items": make_nullable(scalar), "minItems": 1},
        "all": {"type": "array", "items": scalar, "minItems": 1},
        "prefix": {"type": "string"},
        "exists": {"type": "boolean"},
        "not": {"$ref": "#/components/schemas/Operand"},
    }

    def make_conditions(bound: str) -> Schema:
        properties = operators | {name: {"type": bound} for name in ("gt", "gte", "lt", "lte")}
        return {"type": "object", "properties": properties, "minProperties": 1, "additionalProperties": False}

    return {"anyOf": [make_nullable(scalar), make_conditions("number"), make_conditions("string")]}


def _make_filter(limits: RequestLimits) -> Schema:
    reference = {"$ref": "#/components/schemas/Filter"}
    filters = {"type": "array", "items": reference, "minItems": 1}
    return {
        "type": "object",
        "description": "Conditions by attribute, all of which must hold; null: the attribute is absent; bounds that "
        "are ISO 8601 dates compare as times. Operators on one attribute may be combined. "
        f"Up to {limits.conditions} conditions and {limits.values} values in all.",
        "minProperties": 1,
        "properties": {"and": filters, "or": filters, "not": reference},
        "additionalProperties": {"$ref": "#/components/schemas/Operand"},
        "examples": [
            {"lang": "en", "year": {"gte": 2020}},
            {"or": [{"tag": {"any": ["a", "b"]}}, {"not": {"n": 1}}]},
            {"published": {"gte": "2024-01-31", "lt": "2025-01-01"}, "url": {"prefix": "https://"}, "draft": None},
        ],
    }


def _make_index() -> Schema:
    count = {"type": "integer", "minimum": 0}
    pair = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    kind = {"enum": ["string", "number", "boolean"]}
    attribute = make_object({"name": {"type": "string"}, "kind": kind, "values": {"type": "array"}})
    return make_object(
        {
            "name": {"type": "string"},
            "documents": count,
            "dim": count,
            "stored_dim": count,
            "code_bytes": count,
            "engine": {"type": "string"},
            "ram_bytes": count,
            "ram_bytes_per_document": {"type": "number"},
            "disk_bytes": count,
            "model": make_nullable({"type": "string"}),
            "encoder": make_nullable({"type": "string"}),
            "generation": count,
            "segments": count,
            "candidates": count,
            "recall_curve": make_nullable({"type": "array", "items": pair}),
            "outdated_recall_curve": make_nullable({"type": "array", "items": pair}),
            "limits": {"type": "object", "additionalProperties": {"type": "number"}},
            "texts": {"type": "boolean"},
            "words": {"type": "boolean"},
            "lexical": count,
            "lexical_weight": {"type": "number"},
            "behind": {"type": "boolean"},
            "attributes": {"type": "array", "items": attribute},
            "examples": {"type": "array", "items": {"type": "string"}},
        }
    )


def _make_schema() -> Schema:
    count = {"type": "integer", "minimum": 0}
    limit: Schema = {"type": ["number", "string"]}
    attribute = make_object(
        {
            "name": {"type": "string"},
            "type": {"enum": ["string", "number", "boolean", "time"]},
            "documents": count,
            "examples": {"type": "array", "items": {"type": "string"}},
            "lists": {"type": "boolean", "description": "Whether a document has several values."},
            "min": limit,
            "max": limit,
            "true": count,
            "false": count,
        },
        optional=("examples", "lists", "min", "max", "true", "false"),
    )
    return make_object({"documents": count, "attributes": {"type": "array", "items": attribute}})


def _make_readiness() -> Schema:
    body = make_object(
        {
            "status": {"enum": ["starting", "ready", "behind", "draining"]},
            "generation": make_integer(),
            "documents": {"type": "integer", "minimum": 0},
            "model": make_nullable({"type": "string"}),
            "trouble": make_nullable({"type": "string"}),
        }
    )
    operation = make_get("Readiness, and the state of the index.", body, health=True)
    operation["responses"]["503"] = {
        "description": "Starting, draining, or overloaded.",
        "content": {"application/json": {"schema": {"anyOf": [body, {"$ref": "#/components/schemas/Error"}]}}},
    }
    return operation


def _make_metrics() -> Schema:
    operation = make_get("Metrics in the format of Prometheus.", {"type": "string"})
    operation["responses"] |= make_responses({"type": "string"}, content_type="text/plain")
    return operation


ID: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS}
COUNT: Schema = {"type": "integer", "minimum": 0}
STATE: Schema = {"documents": COUNT, "generation": make_integer()}


def make_document_paths(snapshot: IndexSnapshot, limits: RequestLimits) -> Schema:
    """Return the operations of /v1/documents."""
    batch: Schema = {"type": "array", "minItems": 1, "maxItems": limits.documents}
    ids = {
        "name": "id",
        "in": "query",
        "required": True,
        "explode": True,
        "schema": batch | {"items": ID},
        "example": ["doc-1"],
    }
    missing = {"name": "missing_ok", "in": "query", "schema": {"type": "boolean", "default": False}}
    return {
        "get": {
            "operationId": "fetch",
            "summary": "Documents by id.",
            "parameters": [ids],
            "responses": make_responses(_make_fetch_response(), *COMMON),
        },
        "post": {
            "operationId": "add",
            "summary": "Add or replace documents in one commit; durable when answered.",
            "requestBody": {"required": True, "content": {"application/json": _make_add_body(snapshot, batch)}},
            "responses": make_responses(make_object({**STATE, "added": COUNT, "replaced": COUNT}), *WITH_BODY, 409),
        },
        "patch": {
            "operationId": "set_attributes",
            "summary": "Change attributes by id or by filter; codes, vectors and texts stay. Durable when answered.",
            "requestBody": {"required": True, "content": {"application/json": _make_changes_body(batch)}},
            "responses": make_responses(make_object({**STATE, "changed": COUNT}), *WITH_BODY, 404),
        },
        "delete": {
            "operationId": "remove",
            "summary": "Delete documents by id, all or none; durable when answered.",
            "parameters": [ids, missing],
            "responses": make_responses(make_object({**STATE, "deleted": COUNT}), *COMMON, 404),
        },
    }


def make_filtered_paths(limits: RequestLimits) -> Schema:
    """Return the operations on documents that match a filter."""
    condition = make_nullable(_make_filter(limits))
    listing: Schema = {
        "filter": condition,
        "limit": make_nullable(make_integer(limits.documents, min(LISTED_DOCUMENTS, limits.documents))),
        "cursor": make_nullable({"type": "string", "minLength": 1}),
        "text": make_nullable({"type": "boolean", "default": True, "description": "Whether to return title and text."}),
    }
    page = {"documents": _make_stored_documents(), "cursor": make_nullable({"type": "string"})}

    def make_post(name: str, summary: str, body: Schema, example: Schema, result: Schema) -> Schema:
        content = {"application/json": {"schema": body, "example": example}}
        responses = make_responses(make_object(result), *WITH_BODY)
        request_body = {"required": True, "content": content}
        return {"post": {"operationId": name, "summary": summary, "requestBody": request_body, "responses": responses}}

    return {
        "/v1/documents/list": make_post(
            "list",
            "Documents page by page, without a query; one that stays is listed once, whatever is written meanwhile.",
            make_object(listing, optional=tuple(listing)),
            {"limit": 3},
            page,
        ),
        "/v1/documents/count": make_post(
            "count",
            "Number of documents that match a filter.",
            make_object({"filter": condition}, optional=("filter",)),
            {},
            {"count": COUNT},
        ),
        "/v1/documents/delete": make_post(
            "remove_where",
            "Delete the documents that match a filter, in one commit; durable when answered.",
            make_object({"filter": {"$ref": "#/components/schemas/Filter"}}),
            {"filter": {"lang": "xx"}},
            {**STATE, "deleted": COUNT},
        ),
    }


def make_index_paths() -> Schema:
    """Return the operations on named indexes."""
    name: Schema = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    entry = make_object(
        {"name": {"type": "string"}, "documents": COUNT, "dim": make_integer(), "default": {"type": "boolean"}}
    )
    options = {
        "dim": make_integer(MAX_DIM),
        "metric": make_nullable({"type": "string", "enum": ["cosine", "ip"], "default": "cosine"}),
        "bytes_per_doc": make_nullable(make_integer(MAX_DIM)),
        "codewords": make_nullable({"type": "integer", "enum": [16, 256], "default": 16}),
        "fit_documents": make_nullable(make_integer(MAX_FIT_DOCUMENTS, FIT_DOCUMENTS)),
    }
    body = make_object(options, optional=tuple(options)[1:])
    changed = {"type": "string"}
    return {
        PREFIX: {"get": make_get("Named indexes.", make_object({"indexes": {"type": "array", "items": entry}}))},
        f"{PREFIX}/{{name}}": {
            "get": {
                "operationId": "describe_index",
                "parameters": [name],
                "summary": "Description of a named index. It has the paths of /v1 below this one, such as /search.",
                "responses": make_responses(_make_index(), *COMMON, 404),
            },
            "put": {
                "operationId": "create_index",
                "parameters": [name],
                "summary": "Create an index without documents, on a server with --root.",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": body, "example": {"dim": 384}}},
                },
                "responses": make_responses(make_object({"created": changed}), *WITH_BODY, 404, 409),
            },
            "delete": {
                "operationId": "drop_index",
                "parameters": [name],
                "summary": "Drop an index that was created over HTTP.",
                "responses": make_responses(make_object({"dropped": changed}), *COMMON, 404, 409),
            },
        },
    }


def _make_changes_body(batch: Schema) -> Schema:
    """Return the request body of PATCH /v1/documents, with an example."""
    attributes = _make_attributes()
    attributes["additionalProperties"] = make_nullable(attributes["additionalProperties"])
    attributes |= {"minProperties": 1, "description": "New values; null removes an attribute."}
    change = make_object({"id": ID, "attributes": attributes})
    missing_ok: Schema = {"type": "boolean", "default": False, "description": "Ignore ids that do not exist."}
    by_id = make_object(
        {"documents": batch | {"items": change}, "missing_ok": make_nullable(missing_ok)}, optional=("missing_ok",)
    )
    by_filter = make_object({"filter": {"$ref": "#/components/schemas/Filter"}, "attributes": attributes})
    example = {"documents": [{"id": "doc-1", "attributes": {"price": 3}}], "missing_ok": True}
    return {"schema": {"oneOf": [by_id, by_filter]}, "example": example}


def _make_stored_documents() -> Schema:
    fields = {"id": {"type": "string"}, "title": make_nullable({"type": "string"})}
    fields |= {"text": make_nullable({"type": "string"}), "attributes": make_nullable({"type": "object"})}
    return {"type": "array", "items": make_object(fields)}


def _make_fetch_response() -> Schema:
    missing = {"type": "array", "items": {"type": "string"}}
    return make_object({"documents": _make_stored_documents(), "missing": missing})


def _make_add_body(snapshot: IndexSnapshot, batch: Schema) -> Schema:
    """Return the request body of POST /v1/documents, with an example."""
    fields: Schema = {"id": ID, "title": {"type": "string"}, "text": {"type": "string"}}
    fields["attributes"] = make_nullable(_make_attributes())
    example: Schema = {"id": "doc-1", "title": "Title", "text": "Text", "attributes": {"lang": "en", "year": 2021}}
    if snapshot.encoder is None:
        fields["vector"] = make_vector(snapshot.dim, get_max_component(snapshot))
        example["vector"] = [round(1 / snapshot.dim, 6)] * snapshot.dim
    body = make_object(
        {
            "documents": batch | {"items": make_object(fields, optional=("title", "text", "attributes"))},
            "replace": {"type": "boolean", "default": True, "description": "Replace documents with the same id."},
        },
        optional=("replace",),
    )
    return {"schema": body, "example": {"documents": [example]}}


def _make_attributes() -> Schema:
    attribute: Schema = {
        "type": ["string", "boolean", "number", "array"],
        "minimum": -float(MAX_NUMBER),
        "maximum": float(MAX_NUMBER),
        "items": {"type": "string"},
    }
    names = {"type": "string", "pattern": f"^(?!({'|'.join(COMBINING)})$)", "minLength": 1, "maxLength": LONGEST_NAME}
    return {"type": "object", "propertyNames": names, "additionalProperties": attribute}
