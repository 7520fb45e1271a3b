"""Text to vectors that keeps up: ONNX Runtime where it gives the model's vectors, and one batch for many requests."""

from typing import TYPE_CHECKING, Any

from bidr.server.encoding.config import Encoding

if TYPE_CHECKING:
    from bidr.models.saved_model import Model
    from bidr.server.encoding.service import QueryService

__all__ = ["Encoding", "query_service"]


def query_service(model: "Model", settings: Any) -> "QueryService":
    """The service of a model: `settings` are the server's (index, limits.queue, encoding)."""
    from bidr.server.encoding.service import made_service

    return made_service(model, settings.index, settings.encoding, settings.limits.queue)
