"""Server configuration. Workers receive it as JSON over a pipe, so that no key appears on a command line."""

import ipaddress
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from bidr.errors import ConfigError
from bidr.index.vectors.vector_memory import parse_cache_size
from bidr.server.encoding.config import EncodingConfig
from bidr.server.limits import RequestLimits

READ_KEY, WRITE_KEY = "BIDR_READ_KEY", "BIDR_WRITE_KEY"
MIN_KEY_CHARS = 16
HOST_NAME = re.compile(r"[a-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class ApiKeys:
    """API keys. A write key may read, too; without keys everything is allowed, on loopback only."""

    read: str | None = None
    write: str | None = None

    @property
    def any(self) -> bool:
        return bool(self.read or self.write)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Configuration of a server and its workers."""

    index: Path
    """The index of paths without a name."""
    indexes: dict[str, Path] = field(default_factory=dict)
    """Named indexes."""
    root: Path | None = None
    """Folder of further named indexes, which are created and dropped over HTTP."""
    model: Path | None = None
    encoder: str | None = None
    """Encoder of an index of vectors, if it is not where the index says."""
    reranker: Path | None = None
    """Folder of a cross-encoder."""
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 2
    cache: str | None = None
    """Memory for vectors of all workers together, such as 2GiB; 0: none; None: by the available memory."""
    writable: bool = False
    drain: float = 10.0
    writer_idle: float = 2.0
    """Seconds without a write after which another program may write the index."""
    access_log: bool = True
    traces: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Host names of the server beside localhost."""
    keys: ApiKeys = field(default_factory=ApiKeys)
    limits: RequestLimits = field(default_factory=RequestLimits)
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    runtime: Path | None = None
    """Folder in shared memory: codes, metrics, and the socket of the writer."""

    def to_bytes(self) -> bytes:
        return orjson.dumps(asdict(self), default=str)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        fields: dict[str, Any] = orjson.loads(content)
        fields["indexes"] = {name: Path(folder) for name, folder in fields["indexes"].items()}
        for name in ("index", "model", "runtime", "root", "reranker"):
            fields[name] = Path(fields[name]) if fields[name] else None
        fields["allowed_hosts"] = tuple(fields["allowed_hosts"])
        encoding = EncodingConfig.from_fields(fields["encoding"])
        return cls(
            **fields
            | {"keys": ApiKeys(**fields["keys"]), "limits": RequestLimits(**fields["limits"]), "encoding": encoding}
        )


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def get_client_network(address: str) -> str:
    """Return what limits count as one client: an IPv4 address, or the /64 network of an IPv6 address.

    A provider gives each customer a /64 or more: by address, one client could have any number of buckets.
    """
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address)
    return str(ip.ipv4_mapped or ipaddress.IPv6Network((ip.packed[:8] + bytes(8), 64)))


def is_loopback(host: str) -> bool:
    """Whether a host is on the loopback interface."""
    if host in ("127.0.0.1", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_api_keys(file: Path | None) -> ApiKeys:
    """Load keys from a file of lines 'read KEY' and 'write KEY', or from the environment."""
    keys = {"read": os.environ.get(READ_KEY) or None, "write": os.environ.get(WRITE_KEY) or None}
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: keys cannot be read ({error}); give a file that you may read") from error
        for number, line in enumerate(lines, 1):
            kind, _, key = line.strip().partition(" ")
            if not line.strip() or line.startswith("#"):
                continue
            if kind not in keys or not key.strip():
                raise ConfigError(f"{file} line {number}: expected 'read KEY' or 'write KEY'; no key is shown here")
            keys[kind] = key.strip()
    for kind, value in keys.items():
        if value is not None and (len(value) < MIN_KEY_CHARS or not value.isascii() or " " in value):
            raise ConfigError(
                f"the {kind} key has {len(value)} characters, expected {MIN_KEY_CHARS} or more, ASCII, without spaces; "
                "make one with: openssl rand -hex 24"
            )
    return ApiKeys(**keys)


def validate_config(config: ServerConfig) -> ServerConfig:
    """Reject unsafe or invalid configurations; raises ConfigError."""
    if not is_loopback(config.host) and not config.keys.read:
        raise ConfigError(
            f"host {config.host} is reachable from other machines but there is no read key; set {READ_KEY} in the "
            "environment (or --keys FILE), or listen on 127.0.0.1"
        )
    if not is_loopback(config.host) and config.writable and not config.keys.write:
        raise ConfigError(
            f"--writable on host {config.host} needs a write key; set {WRITE_KEY} in the environment, or --keys FILE"
        )
    for name in config.allowed_hosts:
        if not HOST_NAME.fullmatch(name) and not is_address(name):
            raise ConfigError(
                f"allowed-hosts: given {name!r}, expected names or addresses in lower case, without http:// and port, "
                "such as search.example"
            )
    parse_cache_size(config.cache)
    for name, minimum, maximum in (("workers", 1, 256), ("threads", 0, 256), ("port", 0, 65_535), ("drain", 0, 3_600)):
        if not minimum <= getattr(config, name) <= maximum:
            raise ConfigError(f"{name}: given {getattr(config, name)}, expected {minimum} to {maximum}")
    return config
