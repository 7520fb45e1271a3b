"""Text to vectors that keeps up: ONNX Runtime where it gives the model's vectors, and one batch for many requests."""

from bidr.serve.encoding.service import QueryService, query_service
from bidr.serve.encoding.settings import Encoding

__all__ = ["Encoding", "QueryService", "query_service"]
