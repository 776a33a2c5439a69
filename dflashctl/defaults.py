"""Names that every layer knows. Loads nothing: commands read their options before they load what these are about."""

from pathlib import Path

LOCAL = "local"
"""The name of this machine among hosts."""
DEFAULT_WORKDIR = Path("dflashctl-work")
