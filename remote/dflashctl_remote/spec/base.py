"""The base of every object that is written to a file or crosses to a host."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Frozen, and closed: an unknown key is an error, never ignored. Numbers are finite: JSON knows no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
