"""What finds candidates: which documents a query should look at, from the codes in RAM alone. See `engines/`."""

from bidr.index.engines.factory import AUTO_SCAN_DOCUMENTS, ENGINES, choose_engine
from bidr.index.types import Bitmap, Candidates, Rows

__all__ = ["AUTO_SCAN_DOCUMENTS", "ENGINES", "Bitmap", "Candidates", "Rows", "choose_engine"]
