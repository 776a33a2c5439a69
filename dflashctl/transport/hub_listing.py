"""Which commit a revision is, and which files are in it: the hub's API, asked through huggingface_hub's session.

Its own `list_repo_tree` waits as long as a Retry-After says and has no timeout, so the pages are asked for here.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from dflashctl.errors import ArtifactError, ConfigError, DflashctlError, HostUnreachable
from dflashctl.transport.hub_place import Hub, HubPlace, is_safe_path
from dflashctl.transport.hub_refusals import PASSING, NotThere, Patience, asked_wait_s, busy, no_answer, refusal
from dflashctl.transport.stores import StoredFile

TIMEOUT_S = 30.0
MOST_PAGES = 1000
"""Of a thousand entries each."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
Given = TypeVar("Given")


@dataclass(frozen=True)
class Listing:
    folder: str
    """Of the repository, which the paths are relative to; empty: its root."""
    files: tuple[StoredFile, ...]


def pinned(hub: Hub, place: HubPlace, wait: Callable[[float], None]) -> HubPlace:
    """The same place, at the commit that its revision is now.

    Raises ConfigError (not there, gated, no such revision), HostUnreachable, ArtifactError (no hub answers there).
    """
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.endpoint, token=hub.token or False, library_name="dflashctl")

    def ask() -> Any:
        return api.repo_info(
            place.repository, repo_type=place.kind, revision=place.revision, timeout=TIMEOUT_S, expand=["sha"]
        ).sha

    commit = _patiently(ask, hub, place, wait)
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise _is_no_hub(hub)
    return replace(place, revision=commit)


def list_files(hub: Hub, place: HubPlace, wait: Callable[[float], None]) -> Listing:
    """All files below the path of a pinned place, or the one file that it is; in order of path.

    Raises ArtifactError (nothing there, or names that would lead out of a folder), ConfigError, HostUnreachable.
    """
    folder, entries = place.path, _entries(hub, place, wait, recursive=True)
    if not entries and place.path:
        # What is a file is no folder to the hub.
        folder = place.path.rpartition("/")[0]
        beside = _entries(hub, replace(place, path=folder), wait, recursive=False)
        entries = [entry for entry in beside if entry.get("path") == place.path]
    is_all = folder != place.path
    found = [replace(_stored(entry, folder, hub), is_all=is_all) for entry in entries if entry.get("type") == "file"]
    if not found:
        look = f"look at {hub.endpoint}/{place.page}/tree/{place.revision}"
        raise ArtifactError(f"{place} is not there, or holds no file", hint=look)
    files = tuple(sorted(found, key=lambda file: file.path))
    _check_apart(files, hub)
    return Listing(folder, files)


def _entries(hub: Hub, place: HubPlace, wait: Callable[[float], None], *, recursive: bool) -> list[dict[str, Any]]:
    try:
        return list(_tree(hub, place, wait, recursive=recursive))
    except NotThere:
        return []


def _tree(hub: Hub, place: HubPlace, wait: Callable[[float], None], *, recursive: bool) -> Iterator[dict[str, Any]]:
    from huggingface_hub import get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    url = f"{hub.endpoint}/api/{place.kind}s/{place.repository}/tree/{place.revision}"
    if place.path:
        url += "/" + quote(place.path, safe="")
    params = {"recursive": str(recursive).lower(), "expand": "false"}
    headers = build_hf_headers(token=hub.token or False, library_name="dflashctl")

    def ask() -> tuple[Any, str | None]:
        answer = get_session().get(url, params=params, headers=headers, timeout=TIMEOUT_S)
        hf_raise_for_status(answer)
        return answer.json(), answer.links.get("next", {}).get("url")

    for _ in range(MOST_PAGES):
        entries, following = _patiently(ask, hub, place, wait)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise _is_no_hub(hub)
        yield from entries
        if following is None:
            return
        # Only the mark is taken from it: the token goes where the user said, and mirrors repeat the hub's own address.
        cursor = parse_qs(urlsplit(following).query).get("cursor")
        if not cursor:
            raise _is_no_hub(hub)
        params["cursor"] = cursor[0]
    raise ArtifactError(f"the list of {place} has no end after {MOST_PAGES} pages", hint="name a folder in it")


def _patiently(ask: Callable[[], Given], hub: Hub, place: HubPlace, wait: Callable[[float], None]) -> Given:
    from huggingface_hub import errors

    patience = Patience(wait)
    problem: DflashctlError
    while True:
        try:
            return ask()
        except errors.OfflineModeIsEnabled as error:
            hint = "unset HF_HUB_OFFLINE"
            raise HostUnreachable(
                f"{hub.host} is not asked: HF_HUB_OFFLINE is set", host=hub.host, hint=hint
            ) from error
        except errors.HFValidationError as error:
            raise ConfigError(f"{place.repository} is no name that a repository can have") from error
        except errors.HfHubHTTPError as error:
            status, headers = error.response.status_code, error.response.headers
            if status not in PASSING:
                # Not chained: the text of the other one holds what the hub wrote.
                raise refusal(hub, place, status, headers) from None
            asked_s = asked_wait_s(headers)
            problem = busy(hub, place, status, asked_s)
        except errors.HTTPError as error:
            problem, asked_s = no_answer(hub, error), None
        except (ValueError, KeyError, TypeError) as error:
            raise _is_no_hub(hub) from error
        patience.pause(problem, asked_s)


def _stored(entry: dict[str, Any], folder: str, hub: Hub) -> StoredFile:
    """One entry of a tree, as in https://huggingface.co/.well-known/openapi.json; ArtifactError if not believed."""
    path, size, oid, lfs = entry.get("path"), entry.get("size"), entry.get("oid"), entry.get("lfs")
    prefix = folder + "/" if folder else ""
    if not isinstance(path, str) or not is_safe_path(path) or not path.startswith(prefix):
        raise ArtifactError(
            f"{hub.host} lists a file {path!a:.200} that does not lie in the folder asked for; nothing was read",
            hint="do not trust that hub, or that repository",
        )
    sha256 = None if lfs is None else lfs.get("oid") if isinstance(lfs, dict) else ""
    is_same_size = lfs is None or (isinstance(lfs, dict) and lfs.get("size") == size)
    is_hashed = _is_hash(oid, _COMMIT) and (lfs is None or _is_hash(sha256, _SHA256))
    if type(size) is not int or size < 0 or not is_same_size or not is_hashed:
        raise ArtifactError(f"{hub.host} lists {path} without a size and hash to check it by", hint="try another hub")
    version = f"git:{oid}" if sha256 is None else f"lfs:{sha256}"
    return StoredFile(path.removeprefix(prefix), size, version, sha256)


def _check_apart(files: tuple[StoredFile, ...], hub: Hub) -> None:
    """No two of one name, and none that is a folder too."""
    names = {file.path for file in files}
    folders = {file.path[:place] for file in files for place, sign in enumerate(file.path) if sign == "/"}
    if len(names) < len(files) or names & folders:
        raise ArtifactError(f"{hub.host} lists one name twice; nothing was read", hint="do not trust that hub")


def _is_hash(text: object, form: re.Pattern[str]) -> bool:
    return isinstance(text, str) and form.fullmatch(text) is not None


def _is_no_hub(hub: Hub) -> ArtifactError:
    return ArtifactError(
        f"what answers at {hub.host} does not answer like a Hugging Face hub",
        hint="check HF_ENDPOINT, and whether a proxy wants a login",
    )
