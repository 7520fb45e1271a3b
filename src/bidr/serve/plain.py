"""The plainest encoder: the model's own, one request at a time. What `encoding` does better, it does in this shape."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from bidr.codes.codebooks import Floats
from bidr.model.encode import encode_texts
from bidr.model.folder import Model
from bidr.search import QueryVectors


class PlainService:
    """Encodes queries, and the documents that are added."""

    def __init__(self, model: Model) -> None:
        self.model, self._pool = model, ThreadPoolExecutor(1, "encode")

    async def encode(self, texts: list[str], deadline: float) -> QueryVectors:
        loop = asyncio.get_running_loop()
        return QueryVectors(*await loop.run_in_executor(self._pool, self.model.encode_queries, texts))

    def documents(self, texts: list[str]) -> tuple[Floats, Floats]:
        """Vectors for the codes, and vectors for the disk."""
        sides = []
        for encoder in (self.model.sparse, self.model.dense):
            longest = min(self.model.text.document_length, encoder.max_length)
            sides.append(encode_texts(encoder, texts, prompt=encoder.prompts.document, max_length=longest))
        return sides[0], sides[1]

    def close(self) -> None:
        self._pool.shutdown(wait=False)
