"""`bidr serve`: serve an index over HTTP."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from bidr.cli.base import Command, CommandResult, OptionalEncoder, OptionalFile, OptionalFolder, OptionalSize
from bidr.errors import ConfigError, MissingExtraError
from bidr.server.encoding.config import EncodingConfig
from bidr.server.limits import RequestLimits
from bidr.utils.cpu_and_heap import count_available_cpus


@dataclass(frozen=True, kw_only=True)
class Serve(Command):
    """Serve an index over HTTP; with --writable, also accept documents.

    API keys come from the environment (BIDR_READ_KEY, BIDR_WRITE_KEY) or from --keys; on loopback none are needed.
    """

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "index": ("index", "root", "model", "encoder"),
        "server": ("host", "port", "workers", "threads", "cache", "writable", "drain"),
        "access": ("keys", "allowed-hosts"),
    }

    index: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME=]INDEX ...")] = ()
    """Index folders. With names, as in a=INDEX b=INDEX, each is served below /v1/indexes/NAME too."""
    root: OptionalFolder = None
    """Folder of further indexes, each by its name; with --writable they are created and dropped over HTTP."""
    model: OptionalFolder = None
    """Model folder, if it has moved since the index was built."""
    encoder: OptionalEncoder = None
    """Encoder of an index of vectors: that which made them (see bidr build), or where it is now. By default that which
    the index was built with."""
    reranker: OptionalFolder = None
    """Folder of a cross-encoder (ONNX), for requests with `rerank`."""
    host: str = "127.0.0.1"
    """Address to listen on. Any but loopback needs keys."""
    port: int = 8000
    """Port to listen on; 0: any free port."""
    workers: int = 1
    """Worker processes; they share the memory of the codes."""
    threads: int = field(default_factory=lambda: min(4, count_available_cpus()))
    """Search threads per worker; 0: search in the event loop, one request after another."""
    cache: OptionalSize = None
    """Memory for vectors of all workers together, such as 2GiB; 0: none. By default the page cache if all vectors fit
    in the available memory, otherwise caches of half of it."""
    writable: bool = False
    """Accept additions and deletions, in a separate writer process."""
    keys: OptionalFile = None
    """File of lines 'read KEY' and 'write KEY'; by default the environment is read."""
    drain: float = 10.0
    """Seconds that open requests have to finish after SIGTERM."""
    allowed_hosts: tuple[str, ...] = ()
    """Allowed values of the Host header, beside localhost."""
    access_log: bool = True
    """Log each request as a line of JSON on standard error."""
    traces: bool = False
    """Export OpenTelemetry traces by OTLP, as the OTEL_ variables of the environment say (extra `traces`)."""
    limit: RequestLimits = field(default_factory=RequestLimits)
    encoding: EncodingConfig = field(default_factory=EncodingConfig)

    def run(self) -> CommandResult:
        try:
            import httptools  # noqa: F401
            import orjson  # noqa: F401
            import prometheus_client  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("bidr serve", error.name or "uvicorn", "serve") from error
        from dataclasses import replace

        if self.traces:
            from bidr.server.request_tracer import check_packages

            check_packages()
        from bidr.server.config import ServerConfig, load_api_keys, validate_config
        from bidr.server.supervisor import supervise

        default, indexes = parse_indexes(self.index, self.root)
        settings = validate_config(
            ServerConfig(
                index=default,
                indexes=indexes,
                root=self.root,
                model=self.model,
                encoder=self.encoder,
                reranker=self.reranker,
                host=self.host,
                port=self.port,
                workers=self.workers,
                threads=self.threads,
                cache=self.cache,
                writable=self.writable,
                drain=self.drain,
                access_log=self.access_log,
                traces=self.traces,
                allowed_hosts=self.allowed_hosts,
                keys=load_api_keys(self.keys),
                limits=self.limit,
                encoding=self.encoding,
            )
        )
        supervise(settings, lambda config: validate_config(replace(config, keys=load_api_keys(self.keys))))
        return CommandResult(f"{default}: stopped", {"index": str(default)})


def parse_indexes(arguments: tuple[str, ...], root: Path | None) -> tuple[Path, dict[str, Path]]:
    """Return the index of paths without a name, which is the first one, and the named indexes."""
    from bidr.server.config import ServerConfig
    from bidr.server.index_endpoint import INDEX_NAME, list_folders, name_index

    indexes: dict[str, Path] = {}
    default: Path | None = None
    for argument in arguments:
        name, sign, folder = argument.partition("=")
        is_named = bool(sign) and not Path(argument).exists()
        path = Path(folder if is_named else argument)
        default = default or path
        if is_named and (not INDEX_NAME.fullmatch(name) or name in indexes):
            raise ConfigError(
                f"index: given the name {name!r}, expected one of letters, digits, dots, hyphens and underscores that "
                "no other index has"
            )
        key = name if is_named else name_index(path, indexes)
        if len(arguments) > 1 and key is None:
            raise ConfigError(f"index: {argument} needs a name; write NAME={argument}")
        if is_named or len(arguments) > 1:
            indexes[str(key)] = path
    if root is not None and not root.is_dir():
        raise ConfigError(f"root: {root} is not a folder; create it first")
    if default is None and root is not None:
        default = next(iter(list_folders(ServerConfig(index=root, root=root)).values()), None)
    if default is None:
        raise ConfigError("no index given; give its folder, or create one: bidr create INDEX --dim D")
    return default, indexes
