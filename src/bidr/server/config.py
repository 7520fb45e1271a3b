"""How the server is set up. Workers get it as JSON over a pipe, keys included: nothing of it is on a command line."""

import ipaddress
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from bidr.errors import ConfigError
from bidr.server.encoding.config import EncodingConfig
from bidr.server.limits import RequestLimits

READ_KEY, WRITE_KEY = "BIDR_READ_KEY", "BIDR_WRITE_KEY"
SHORTEST_KEY = 16
HOST_NAME = re.compile(r"[a-z0-9._-]+")


@dataclass(frozen=True, kw_only=True)
class ApiKeys:
    """Who may do what. A write key may read too; without keys everybody may do everything, on loopback only."""

    read: str | None = None
    write: str | None = None

    @property
    def any(self) -> bool:
        return bool(self.read or self.write)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Everything a worker needs to know."""

    index: Path
    model: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    threads: int = 2
    writable: bool = False
    drain: float = 10.0
    writer_idle: float = 2.0
    """Seconds without a write after which another program may write the index."""
    access_log: bool = True
    allowed_hosts: tuple[str, ...] = ()
    """Names under which the server is reached, beside localhost."""
    keys: ApiKeys = field(default_factory=ApiKeys)
    limits: RequestLimits = field(default_factory=RequestLimits)
    encoding: EncodingConfig = field(default_factory=EncodingConfig)
    runtime: Path | None = None
    """A folder of the server's own in memory: what workers share, metrics, the writer's socket."""

    def to_bytes(self) -> bytes:
        return orjson.dumps(asdict(self), default=str)

    @classmethod
    def parse_binary_search(cls, content: bytes) -> Self:
        given: dict[str, Any] = orjson.loads(content)
        for name in ("index", "model", "runtime"):
            given[name] = Path(given[name]) if given[name] else None
        given["allowed_hosts"] = tuple(given["allowed_hosts"])
        encoding = EncodingConfig.from_fields(given["encoding"])
        return cls(
            **given
            | {"keys": ApiKeys(**given["keys"]), "limits": RequestLimits(**given["limits"]), "encoding": encoding}
        )


def is_address(host: str) -> bool:
    """Whether it is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host in ("127.0.0.1", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_api_keys(file: Path | None) -> ApiKeys:
    """Keys from a file of lines 'read KEY' and 'write KEY', or from the environment."""
    found = {"read": os.environ.get(READ_KEY) or None, "write": os.environ.get(WRITE_KEY) or None}
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: keys cannot be read ({error}); give a file that you may read") from error
        for number, line in enumerate(lines, 1):
            kind, _, key = line.strip().partition(" ")
            if not line.strip() or line.startswith("#"):
                continue
            if kind not in found or not key.strip():
                raise ConfigError(f"{file} line {number}: expected 'read KEY' or 'write KEY'; no key is shown here")
            found[kind] = key.strip()
    for kind, value in found.items():
        if value is not None and (len(value) < SHORTEST_KEY or not value.isascii() or " " in value):
            raise ConfigError(
                f"the {kind} key has {len(value)} characters, expected {SHORTEST_KEY} or more, ASCII, without spaces; "
                "make one with: openssl rand -hex 24"
            )
    return ApiKeys(**found)


def validate_config(settings: ServerConfig) -> ServerConfig:
    """Refuse what would be unsafe or could not work."""
    if not is_loopback(settings.host) and not settings.keys.read:
        raise ConfigError(
            f"host {settings.host} can be reached by others and no read key is set; set {READ_KEY} in the environment "
            "(or --keys FILE), or listen on 127.0.0.1"
        )
    if not is_loopback(settings.host) and settings.writable and not settings.keys.write:
        raise ConfigError(
            f"--writable on host {settings.host} needs a write key; set {WRITE_KEY} in the environment, or --keys FILE"
        )
    for name in settings.allowed_hosts:
        if not HOST_NAME.fullmatch(name) and not is_address(name):
            raise ConfigError(
                f"allowed-hosts: given {name!r}, expected names or addresses in lower case, without http:// and port, "
                "such as search.example"
            )
    for name, least, most in (("workers", 1, 256), ("threads", 0, 256), ("port", 0, 65_535), ("drain", 0, 3_600)):
        if not least <= getattr(settings, name) <= most:
            raise ConfigError(f"{name}: given {getattr(settings, name)}, expected {least} to {most}")
    return settings
