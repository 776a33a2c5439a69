"""Keys of objects, and the paths of files that they stand for."""

SIDECAR_NAME = ".dflashctl-sha256.json"
"""Beside a tree, {"files": {path: {"sha256", "etag"}}}: for objects that have no `sha256` in their metadata."""
MAX_KEY_BYTES = 1024


def key_of(prefix: str, path: str) -> str:
    folder = prefix.rstrip("/")
    return f"{folder}/{path}" if folder else path


def problem_of(path: str) -> str | None:
    """Why a key, or the part of it below the prefix, is no path of a file; None: it is one. Backslashes are letters."""
    parts = path.split("/")
    if path.startswith("/"):
        return "it begins with /, which would be an absolute path"
    if "" in parts:
        return "it has an empty name between two slashes, or at its end"
    if ".." in parts or "." in parts:
        return "it has . or .. among its names, which would lead elsewhere"
    if "\0" in path:
        return "it has a zero byte, which no name of a file can hold"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8 text"
    return None


def clash_among(paths: list[str]) -> str | None:
    """A path that would be a file and a folder at once; None: there is none."""
    whole = set(paths)
    for path in paths:
        above = path.rpartition("/")[0]
        while above:
            if above in whole:
                return above
            above = above.rpartition("/")[0]
    return None
