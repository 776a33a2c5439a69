"""Stands in for the serving job: see stand_in.py beside the tests of the deploy stage."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[3] / "stages" / "deploy" / "stand_in.py"), run_name="__main__")
