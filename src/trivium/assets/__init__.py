"""The models that the package carries."""

from pathlib import Path

NANO = Path(__file__).parent / "nano"
"""A base of 1.3 million parameters, made on generated worlds (bases/nano)."""
READER = NANO.with_name("nano-reader")
"""The same after it has learned to read pages, for passages that people wrote."""
CODE = NANO.with_name("nano-code")
"""A base of 1.2 million parameters that reads and edits small generated projects, with a tokenizer of its own (bases/code)."""
