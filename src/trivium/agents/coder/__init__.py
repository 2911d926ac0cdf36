"""The coder (Composer 2): it reads, changes and runs code at a desk of its own, and goes on from its own summaries."""
