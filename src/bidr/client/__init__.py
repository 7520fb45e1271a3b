"""Client of a served index, with the interface of a local one: `bidr.Client(url)` for `bidr.open_index(folder)`.

with bidr.Client("http://127.0.0.1:8000") as searcher:
    print(searcher.search("who painted the night watch", k=10))
"""

from bidr.client.client import AsyncClient, Client
from bidr.client.errors import Conflict, NotAllowed, Rejected, ServiceError, Unavailable

__all__ = ["AsyncClient", "Client", "Conflict", "NotAllowed", "Rejected", "ServiceError", "Unavailable"]
