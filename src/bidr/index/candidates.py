"""What finds candidates: which documents a query should look at, from the codes in RAM alone. See `engines/`."""

from bidr.index.engines.base import Bitmap, Candidates, Rows
from bidr.index.engines.choose import AUTO_SCAN_DOCUMENTS, ENGINES, choose_engine

__all__ = ["AUTO_SCAN_DOCUMENTS", "ENGINES", "Bitmap", "Candidates", "Rows", "choose_engine"]
