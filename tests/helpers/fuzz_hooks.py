"""For schemathesis: bytes that are vectors, which a schema of bytes cannot say."""

import os

import numpy as np
import schemathesis
from hypothesis import strategies as st

DIM = int(os.environ["FUZZED_DIM"])
rows = st.integers(1, 3).map(lambda count: np.full((count, DIM), 0.25, dtype="<f4").tobytes())
schemathesis.openapi.media_type("application/octet-stream", rows)
