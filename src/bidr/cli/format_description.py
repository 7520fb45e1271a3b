"""Format descriptions of models and indexes."""

from typing import Any

from bidr.cli.base import CommandResult, format_columns, format_count
from bidr.index.engines.engine_choice import get_engine_label
from bidr.index.ram_usage import get_part_label


def describe_model(model: Any) -> CommandResult:
    """Describe a model and its training."""
    training, text = model.training, model.text
    config = training["config"]
    books = model.codebooks
    value = {
        "folder": str(model.folder),
        "fingerprint": model.fingerprint,
        "unified": model.unified,
        "candidates": model.candidates,
        "search": {"lexical": model.search.lexical, "lexical_weight": model.search.lexical_weight},
        "text": {
            "titles": text.titles,
            "query_length": text.query_length,
            "document_length": text.document_length,
        },
        "codes": {"books": books.books, "codewords": books.words, "bytes_per_document": books.bytes_per_doc},
        "lists": len(model.lists.means) if model.lists else None,
        "dimensions": books.dim,
        "training": training,
    }
    rows = [
        ("model", str(model.folder)),
        ("fingerprint", model.fingerprint),
        ("method", config["method"]),
        ("encoder", f"{config['encoder']['backbone']}, {books.dim} dimensions"),
        ("codes", f"{books.bytes_per_doc} bytes a document ({books.books} books of {books.words} codewords)"),
        *([("lists", f"{len(model.lists.means):,}, learned: bidr build --engine ivf")] if model.lists else []),
        ("query encoders", "one for both sides" if model.unified else "one for each side"),
        ("candidates", f"{model.candidates} by default"),
        *([("BM25", format_fusion(model.search))] if model.search.lexical else []),
        ("text", f"titles: {text.titles}; most tokens: query {text.query_length}, document {text.document_length}"),
        (
            "trained on",
            f"{training['data']}: {format_count(training['documents'], 'document')}, "
            f"{format_count(training['train_queries'], 'query', 'queries')}",
        ),
        *((f"stage {name}", format_stage(epochs)) for name, epochs in training["stages"].items()),
    ]
    return CommandResult(format_columns(rows), value)


def format_fusion(search: Any) -> str:
    """The recommended fusion with BM25."""
    return f"{search.lexical} candidates with weight {search.lexical_weight:g}, used by default"


def describe_frozen(model: Any) -> CommandResult:
    """Describe a codes-only model and its held-out measurements."""
    training, books = model.training, model.codebooks
    codes = {"books": books.books, "codewords": books.words, "bytes_per_document": books.bytes_per_doc}
    keys = ("fingerprint", "metric", "candidates")
    value = {
        "folder": str(model.folder),
        "kind": "frozen",
        **{name: getattr(model, name) for name in keys},
        "dimensions": model.dim,
        "codes": codes,
        "training": training,
    }
    queries, labeled = training["questions"], training["labelled_questions"]
    rows = [
        ("model", f"{model.folder} (for vectors: no text encoder)"),
        ("fingerprint", model.fingerprint),
        ("vectors", f"{model.dim} dimensions, ranked by {'cosine' if model.metric == 'cosine' else 'inner product'}"),
        ("codes", f"{books.bytes_per_doc} bytes a document ({books.books} books of {books.words} codewords)"),
        ("candidates", f"{model.candidates} by default"),
        (
            "learned from",
            f"{training['sampled_documents']:,} of {format_count(training['documents'], 'document')}, "
            + (
                f"{format_count(queries, 'query', 'queries')}, {labeled:,} of them labeled"
                if queries
                else "documents in place of queries"
            ),
        ),
        *(
            (f"held out, step {figures['step']}", format_dev_figures(figures, model.candidates))
            for figures in training["dev"]
        ),
    ]
    return CommandResult(format_columns(rows), value)


def format_dev_figures(figures: dict[str, float], candidates: int) -> str:
    """Format the held-out recall among the candidates."""
    line = f"{figures['exact_top_10']:.4f} of the exact top 10 among {candidates} candidates"
    return f"{line}, {figures['labelled']:.4f} of the labeled" if "labelled" in figures else line


def format_stage(epochs: list[dict[str, float]]) -> str:
    """Format a stage: epochs, last loss, and the best dev metric."""
    if not epochs:
        return "no epochs"
    if "step" in epochs[-1]:  # codes-only training has steps, no epochs
        best_step = max(epochs, key=lambda figures: figures["kept_by"])
        figures = [
            f"{name.replace('_', ' ')} {best_step[name]:.4f}"
            for name in ("exact_top_10", "labelled")
            if name in best_step
        ]
        return f"{format_count(int(epochs[-1]['step']), 'step')}, best dev {', '.join(figures)}"
    measure = list(epochs[-1])[2]
    best_value = max(epoch[measure] for epoch in epochs)
    return f"{format_count(len(epochs), 'epoch')}, loss {epochs[-1]['loss']:.4f}, best dev {measure} {best_value:.4f}"


def _format_encoder(encoder: dict[str, Any]) -> str:
    prompts = [
        f"{role} prompt {encoder[f'{role}_prompt']!r}" for role in ("query", "document") if encoder[f"{role}_prompt"]
    ]
    return ", ".join([f"{encoder['name']} ({encoder['fingerprint']})", *prompts, f"{encoder['max_length']:,} tokens"])


def describe_index(keys: dict[str, Any]) -> CommandResult:
    """Format `LiveIndex.describe`: settings, RAM and disk."""
    ram, disk, count = keys["ram_bytes"], keys["disk_bytes"], keys["documents"]
    ram_per_doc, disk_per_doc = keys["ram_bytes_per_document"], keys["disk_bytes_per_document"]
    model = keys["model"]
    rows = [
        ("index", f"{keys['folder']} (generation {keys['generation']}, format {keys['format']})"),
        ("documents", f"{count:,}, {'with' if keys['text'] else 'without'} texts"),
        (
            "engine",
            f"{get_engine_label(keys['engine'])} over the codes, {keys['metric']}"
            + (
                "; chosen automatically by size, re-evaluated at compaction"
                if keys.get("engine_chosen_by_size")
                else ""
            ),
        ),
        *([("lists", format_lists(keys["lists"]))] if keys.get("lists") else []),
        ("codes", _format_codes(keys["codes"])),
        (
            "dimensions",
            f"{keys['dimensions']['codes']} for the codes, {_format_dimensions(keys['dimensions'])} for the vectors",
        ),
        (
            "vectors",
            f"{keys['vectors']['stored']}; cold reads: {keys['vectors']['reads'].replace('direct', 'O_DIRECT')}"
            f"{_format_cache(keys['vectors'])}; "
            + ("checksums verified on first read" if keys["vectors"]["checked"] else "no block checksums"),
        ),
        *([("not checked", f"{', '.join(keys['unchecked'])}: build it again")] if keys["unchecked"] else []),
        *(
            []
            if keys.get("encoder") and not model
            else [("model", f"{model['fingerprint']} ({model['folder']})" if model else "none: made from vectors")]
        ),
        *([("encoder", _format_encoder(keys["encoder"]))] if keys.get("encoder") else []),
        *([("words", "indexed: bidr search --lexical 100")] if keys.get("lexical") else []),
        *_list_live_rows(keys),
        ("in RAM", f"{ram_per_doc['total']:,.1f} bytes a document, {format_bytes(sum(ram.values()))} in all"),
        *(
            (f"  {get_part_label(name)}", f"{ram_per_doc[name]:,.1f} bytes a document, {format_bytes(ram[name])}")
            for name in ram
        ),
        (
            "on disk",
            f"{sum(disk_per_doc.values()):,.1f} bytes a document, {format_bytes(sum(disk.values()))} in all"
            f"{_format_files(keys)}",
        ),
        *((f"  {name}", f"{disk_per_doc[name]:,.1f} bytes a document, {format_bytes(disk[name])}") for name in disk),
    ]
    return CommandResult(format_columns(rows), keys)


def _format_codes(codes: dict[str, Any]) -> str:
    if not codes.get("fitted", True):
        return "not fitted yet: searches rank all documents by their vectors"
    return f"{codes['books']} books of {codes['codewords']} codewords"


def _format_cache(vectors: dict[str, Any]) -> str:
    if vectors["memory"] == "page cache":
        return ""
    return f" (row cache of {format_bytes(vectors['cache_bytes'])})" if vectors["cache_bytes"] else " (no row cache)"


def _format_dimensions(keys: dict[str, int]) -> str:
    dim, stored = keys["vectors"], keys["stored"]
    return f"{dim}" if stored == dim else f"the first {stored} of {dim}"


def format_lists(lists: dict[str, Any]) -> str:
    """Format the number and the origin of the lists."""
    return f"{lists['count']:,}, {'learned by the model' if lists['made_by'] == 'model' else 'by k-means'}"


def _list_live_rows(keys: dict[str, Any]) -> list[tuple[str, str]]:
    """List rows about attributes, segments, log and drift."""
    rows = [("attributes", ", ".join(keys["attributes"]))] if keys.get("attributes") else []
    rows += [(f"  {field['name']}", _format_field(field)) for field in keys.get("schema", ())]
    if keys.get("log"):
        rows += [
            (
                f"segment {segment['name']}",
                f"{format_count(segment['documents'], 'document')}, {segment['deleted']:,} deleted, "
                f"{get_engine_label(segment['engine'])}",
            )
            for segment in keys["segments"]
        ]
        log = keys["log"]
        rows.append(("log", f"{format_count(log['documents'], 'document')}, {format_bytes(log['ram_bytes'])} in RAM"))
    if keys.get("drift"):
        drift = keys["drift"]
        rows += [
            ("drift", f"of the {drift['documents']:,} documents that were measured last, against the corpus:"),
            ("  code error", f"{drift['error']:.3f}, against {drift['base_error']:.3f}"),
            ("  codeword entropy", f"{drift['entropy']:.2f} bits, against {drift['base_entropy']:.2f}"),
            ("  verdict", drift["warning"] or "they fit the codebooks"),
        ]
    return rows


def _format_field(field: dict[str, Any]) -> str:
    """Format an attribute: type, documents, and examples or range."""
    line = f"{field['type']}{', lists' if field.get('lists') else ''}, {format_count(field['documents'], 'document')}"
    if field["type"] == "boolean":
        return f"{line}, {field['true']:,} true"
    if "min" in field:
        low, high = (f"{value:,}" if isinstance(value, int) else str(value) for value in (field["min"], field["max"]))
        return f"{line}, {low} to {high}"
    return f"{line}, such as {', '.join(map(repr, field['examples']))}"


def _format_files(keys: dict[str, Any]) -> str:
    return f", {format_count(keys['files'], 'file')}" if "files" in keys else ""


def format_bytes(count: float) -> str:
    """Format bytes in decimal units."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
