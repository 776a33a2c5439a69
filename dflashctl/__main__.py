"""`python -m dflashctl`."""

from dflashctl.cli.app import script

script()
