"""Vector quantization: codebooks, their training, exact search over codes, and quality metrics."""
