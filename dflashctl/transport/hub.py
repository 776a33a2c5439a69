"""A Hugging Face repository as a source of files, at one commit. Writes nothing, and keeps no cache."""

import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from dflashctl.errors import ConfigError
from dflashctl.transport.hub_listing import Listing, list_files, pinned
from dflashctl.transport.hub_place import TOKEN_VARIABLE, Hub, HubPlace, find_hub, parse_place
from dflashctl.transport.hub_reading import RangeReader
from dflashctl.transport.stores import StoredFile


class HubSource:
    """A FileSource. What it reads is of the commit that the revision was when it was opened, wherever that moves."""

    def __init__(self, hub: Hub, place: HubPlace, wait: Callable[[float], None]) -> None:
        """`place` is pinned: its revision is a commit."""
        self._hub = hub
        self._place = place
        self._wait = wait
        self._reader = RangeReader(hub, place, wait)
        self._lock = threading.Lock()
        self._listing: Listing | None = None

    @property
    def name(self) -> str:
        """With the commit, so that it names the same files tomorrow."""
        return str(self._place)

    def files(self) -> tuple[StoredFile, ...]:
        """See FileSource. `sha256` is that of LFS; what git keeps itself has none, but read whole it is checked too."""
        return self._listed().files

    def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        folder = self._listed().folder
        return self._reader.read(f"{folder}/{file.path}" if folder else file.path, file, offset, length)

    def close(self) -> None:
        self._reader.close()

    def _listed(self) -> Listing:
        # Once is enough: what is in a commit never changes.
        with self._lock:
            if self._listing is None:
                self._listing = list_files(self._hub, self._place, self._wait)
            return self._listing


def open_hub(
    url: str,
    env: Mapping[str, str],
    *,
    endpoint: str | None = None,
    token_variable: str = TOKEN_VARIABLE,
    wait: Callable[[float], None] = time.sleep,
) -> HubSource:
    """hf://org/name[@revision][/path], or hf://datasets/org/name..., pinned to the commit that it is now.

    `env` gives HF_ENDPOINT, if `endpoint` does not, and the token in the variable of that name. Raises ConfigError
    (no such repository or revision, gated, huggingface_hub is not installed), HostUnreachable, ArtifactError.
    """
    place = parse_place(url)
    hub = find_hub(env, endpoint, token_variable)
    if find_spec("huggingface_hub") is None:
        raise ConfigError(f"{place} needs the package huggingface_hub", hint="pip install 'dflashctl[hub]'")
    return HubSource(hub, pinned(hub, place, wait), wait)
