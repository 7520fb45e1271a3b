"""The OpenAPI document, by hand: it says what holds for the index that is served, down to its dimensions."""

from bidr.server.index_holder import IndexSnapshot
from bidr.server.limits import RequestLimits
from bidr.server.openapi_documents import documents_paths
from bidr.server.openapi_parts import (
    ERRORS,
    WITH_BODY,
    Schema,
    an_object,
    error_body,
    getting,
    or_null,
    refusal,
    responses,
    vector,
    whole,
)
from bidr.server.query_params import HEAVIEST, OPTIONS, K


def document(serving: IndexSnapshot, limits: RequestLimits, *, keys: bool) -> Schema:
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
            "/v1/documents": documents_paths(serving, limits),
            "/v1/index": {"get": getting("What is served.", _index())},
            "/livez": {
                "get": getting("Whether the process lives.", an_object({"status": {"const": "live"}}), health=True)
            },
            "/readyz": {"get": _ready()},
            "/metrics": {"get": _metrics()},
        },
        "components": {
            "schemas": {"Filter": _filter(limits), "Answer": _answer(), "Error": error_body()},
            "responses": {str(status): refusal(status) for status in ERRORS},
        },
    }
    if keys:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
        for path in ("/livez", "/readyz"):
            found["paths"][path]["get"]["security"] = []
    return found


def _search(serving: IndexSnapshot, limits: RequestLimits) -> Schema:
    dim, default = serving.dim, min(serving.candidates, limits.candidates)
    vectors = {"type": "array", "items": vector(dim), "minItems": 1, "maxItems": limits.queries}
    text = {"type": "string", "pattern": r"\S", "minLength": 1, "maxLength": limits.characters}
    texts = {"type": "array", "items": text, "minItems": 1, "maxItems": limits.queries}
    model: Schema = {"const": serving.fingerprint, "description": "Fingerprint of the model that made the vectors."}
    options: Schema = {
        "k": whole(limits.k, min(K, limits.k)) | {"description": "Answers to a query."},
        "candidates": whole(limits.candidates, default) | {"description": "How many documents are ranked by vectors."},
        "filter": _filter(limits),
        "text": {"type": "boolean", "default": True, "description": "Whether answers have title and text."},
        "codes_only": {"type": "boolean", "default": False, "description": "The ranking of the codes alone."},
        "model": model,
    }
    body = {name: or_null(each) for name, each in options.items()}
    kinds = [an_object({"vectors": vectors, **body, **_words(0)}, optional=OPTIONS)]
    example: Schema = {"vectors": [[round(1 / dim, 6)] * dim], "k": 3, "candidates": default}
    if serving.service is not None:
        by_words = _words(limits.candidates if serving.words else 0)
        kinds.insert(0, an_object({"texts": texts, **body, **by_words}, optional=OPTIONS))
        example = {"texts": ["who painted the night watch"], "k": 3, "candidates": default}
    shown = [name for name in options if name != "filter" and (name != "model" or serving.fingerprint)]
    parameters = [{"name": name, "in": "query", "required": False, "schema": options[name]} for name in shown]
    said = "Dimensions of the vectors that are sent: bytes of wider ones could be taken for several queries."
    own: Schema = {"type": "integer", "const": dim, "description": said}
    parameters.append({"name": "dim", "in": "query", "required": False, "schema": own})
    size = 4 * dim
    return {
        "operationId": "search",
        "summary": "The best documents for each query.",
        "description": f"Queries in words or as vectors; or as float32 rows, little-endian, of {size} bytes each "
        f"(up to {limits.queries}, finite numbers), with everything else in the query string (a filter as JSON; "
        f"`dim={dim}`, where there is more than one row). "
        f"All queries together may have {limits.answers} answers and {limits.reads} candidates.",
        "parameters": parameters,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": kinds}, "example": example},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": responses(_found(), *WITH_BODY, 409),
    }


def _words(most: int) -> Schema:
    weight = {"type": "number", "minimum": -HEAVIEST, "maximum": HEAVIEST, "default": 0}
    said = "How many documents words (BM25) add to the candidates; only by texts, on an index built with words."
    return {
        "lexical": or_null(whole(most, 0, least=0) | {"description": said}),
        "lexical_weight": or_null(weight | {"description": "Weight of BM25's share in the score."}),
    }


def _found() -> Schema:
    steps = ("encode", "candidates", "reads", "ranking", "total")
    result = an_object(
        {
            "answers": {"type": "array", "items": {"$ref": "#/components/schemas/Answer"}},
            "timings": an_object({step: {"type": "number", "minimum": 0} for step in steps})
            | {"description": "Milliseconds of each step; of a query among several its share."},
        }
    )
    return an_object({"results": {"type": "array", "items": result}, "generation": whole()})


def _answer() -> Schema:
    number: Schema = {"type": "number"}
    return an_object(
        {
            "rank": whole() | {"description": "Final place, by the vectors."},
            "id": {"type": "string"},
            "score": number,
            "candidate_rank": whole(least=0)
            | {"description": "Place among the candidates, by the codes; 0: the words alone found it."},
            "candidate_score": number,
            "word_rank": whole(least=0) | {"description": "Place by the words; 0: not asked, or not among them."},
            "title": or_null({"type": "string"}),
            "text": or_null({"type": "string"}),
            "attributes": or_null({"type": "object"}),
        }
    )


def _filter(limits: RequestLimits) -> Schema:
    scalar: Schema = {"type": ["string", "number", "boolean"]}
    this = {"$ref": "#/components/schemas/Filter"}

    def bounds(kind: str) -> Schema:
        sides = {side: {"type": kind} for side in ("gt", "gte", "lt", "lte")}
        return {"type": "object", "properties": sides, "minProperties": 1, "additionalProperties": False}

    several = {"type": "array", "items": this, "minItems": 1}
    return {
        "type": "object",
        "description": "Conditions by attribute, all of which must hold; "
        f"up to {limits.conditions} conditions and {limits.values} values in all.",
        "minProperties": 1,
        "properties": {"and": several, "or": several, "not": this},
        "additionalProperties": {
            "anyOf": [
                scalar,
                an_object({"any": {"type": "array", "items": scalar, "minItems": 1}}),
                bounds("number"),
                bounds("string"),
            ],
        },
        "examples": [{"lang": "en", "year": {"gte": 2020}}, {"or": [{"tag": {"any": ["a", "b"]}}, {"not": {"n": 1}}]}],
    }


def _index() -> Schema:
    count = {"type": "integer", "minimum": 0}
    pair = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    return an_object(
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
            "model": or_null({"type": "string"}),
            "generation": count,
            "segments": count,
            "candidates": count,
            "recall_curve": or_null({"type": "array", "items": pair}),
            "limits": {"type": "object", "additionalProperties": {"type": "number"}},
            "texts": {"type": "boolean"},
            "words": {"type": "boolean"},
            "behind": {"type": "boolean"},
        }
    )


def _live() -> Schema:
    return getting("Whether the process lives.", an_object({"status": {"const": "live"}}), health=True)


def _ready() -> Schema:
    told = an_object(
        {
            "status": {"enum": ["starting", "ready", "behind", "draining"]},
            "generation": whole(),
            "documents": {"type": "integer", "minimum": 0},
            "model": or_null({"type": "string"}),
            "trouble": or_null({"type": "string"}),
        }
    )
    found = getting("Whether requests are answered, and what with.", told, health=True)
    found["responses"]["503"] = {
        "description": "Starting, or draining; or too much to do.",
        "content": {"application/json": {"schema": {"anyOf": [told, {"$ref": "#/components/schemas/Error"}]}}},
    }
    return found


def _metrics() -> Schema:
    found = getting("Numbers for Prometheus.", {"type": "string"})
    found["responses"] |= responses({"type": "string"}, kind="text/plain")
    return found
