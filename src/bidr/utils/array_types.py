"""Type aliases of the arrays that pass between packages."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
"""Vectors or scores."""
Codes = npt.NDArray[np.uint8]
"""Codes, one byte a codeword number: (documents, M)."""
Rows = npt.NDArray[np.int64]
"""Numbers of documents: rows in input order, or positions in index order."""
Bitmap = npt.NDArray[np.uint8]
"""One bit for each row, as `numpy.packbits(..., bitorder="little")` makes them."""
