"""Text to vectors that keeps up: ONNX Runtime where it gives the model's vectors, and one batch for many requests."""

from typing import TYPE_CHECKING, Any

from bidr.server.encoding.config import EncodingConfig

if TYPE_CHECKING:
    from bidr.models.saved_model import Model
    from bidr.server.encoding.service import QueryService

__all__ = ["EncodingConfig", "query_service"]


def query_service(model: "Model", settings: Any) -> "QueryService":
    """The service of a model: `settings` are the server's (index, limits.queue, encoding)."""
    from bidr.server.encoding.service import open_query_service

    return open_query_service(model, settings.index, settings.encoding, settings.limits.queue)
