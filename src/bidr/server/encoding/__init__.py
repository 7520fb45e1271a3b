"""Text encoding with ONNX Runtime or torch, micro-batched across requests."""

from typing import TYPE_CHECKING, Any

from bidr.server.encoding.config import EncodingConfig

if TYPE_CHECKING:
    from bidr.models.saved_model import Model
    from bidr.server.encoding.service import QueryService

__all__ = ["EncodingConfig", "make_query_service"]


def make_query_service(model: "Model", config: Any) -> "QueryService":
    """Open the query service of a model with a server's configuration."""
    from bidr.server.encoding.service import open_query_service

    return open_query_service(model, config.index, config.encoding, config.limits.queue)
