"""A stand-in of a Hugging Face hub on loopback, and of the place that it redirects large files to.

Answers the questions that reading asks, with the JSON and the headers of the real one: what is in LFS is on another
server (302), what git keeps itself comes from below /api/resolve-cache (307). It records who sent a token where.
"""

import hashlib
import json
import re
import sys
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/(.*))?)?")
RESOLVE = re.compile(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
CACHED = re.compile(r"/api/resolve-cache/(models|datasets)/([^/]+/[^/]+)/([^/]+)/(.+)")
LFS_FROM = 1000
"""Files of so many bytes are in LFS."""


class Commit:
    def __init__(self, files):
        self.files = dict(files)
        told = json.dumps({path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())})
        self.sha = hashlib.sha1(told.encode()).hexdigest()

    def entries(self):
        folders = {path.rsplit("/", count)[0] for path in self.files for count in range(1, path.count("/") + 1)}
        trees = [{"type": "directory", "oid": oid(b""), "size": 0, "path": path} for path in sorted(folders)]
        return trees + [self.entry(path, data) for path, data in sorted(self.files.items())]

    def entry(self, path, data):
        entry = {"type": "file", "oid": oid(data), "size": len(data), "path": path}
        if len(data) >= LFS_FROM:
            sha256 = hashlib.sha256(data).hexdigest()
            entry["oid"] = oid(b"pointer to " + sha256.encode())
            entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
            entry["xetHash"] = hashlib.sha256(b"xet" + data).hexdigest()
        return entry


class HubStandIn:
    """Repositories, what goes wrong, and what was asked. `url` is the hub's, `cdn_url` that of its storage."""

    def __init__(self):
        self.repositories = {}
        """(kind, id) -> {revision: Commit}; every commit is known by its sha too."""
        self.gated, self.private, self.members = set(), set(), set()
        self.page_entries = 1000
        self.requests, self.cdn_requests = [], []
        """(path with query, headers in small letters)."""
        self.troubles, self.cdn_troubles = [], []
        """Of the next requests, in order: None, or a function of the handler that answers instead."""
        self.extra_entries = []
        """Listed in every tree of everything, as they are."""
        self.changed_headers = {}
        """Of answers of resolve."""
        self.cuts = []
        """After how many bytes of the next bodies of the storage the connection breaks off."""
        self.ranges = True

    def commit(self, files, *, repository="org/drafter", kind="model", revision="main"):
        made = Commit(files)
        known = self.repositories.setdefault((kind, repository), {})
        known[revision] = known[made.sha] = made
        return made.sha

    def tokens_at_cdn(self):
        return [headers["authorization"] for _, headers in self.cdn_requests if "authorization" in headers]


def oid(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The head and the body of an answer are two packets otherwise, and the second waits for the first's receipt.
    wbufsize = -1
    timeout = 30

    def log_message(self, *arguments):
        pass

    def say(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content_Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def say_json(self, status, value, **headers):
        self.say(status, json.dumps(value).encode(), Content_Type="application/json; charset=utf-8", **headers)

    def refuse(self, status, code, message, **headers):
        self.say_json(status, {"error": message}, X_Error_Code=code, X_Error_Message=message, **headers)

    def noted(self, requests, troubles):
        """Whether something else was answered."""
        requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        trouble = troubles.pop(0) if troubles else None
        if trouble is not None:
            trouble(self)
        return trouble is not None

    def say_range(self, data, *, with_ranges, cut=None, **headers):
        first, last = 0, len(data) - 1
        if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")) if with_ranges else None:
            first, last = int(asked[1]), min(int(asked[2]), last)
            if first > last:
                self.say(416, Content_Range=f"bytes */{len(data)}")
                return
            headers["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
        body = data[first : last + 1]
        if cut is None:
            self.say(206 if asked else 200, body, Accept_Ranges="bytes", **headers)
            return
        self.say(206 if asked else 200, body[:cut], Content_Length=len(body), **headers)
        self.close_connection = True

    def do_HEAD(self):
        self.do_GET()


def _hub_handler(hub):
    class Handler(_Handler):
        def do_GET(self):
            if self.noted(hub.requests, hub.troubles):
                return
            path = urlsplit(self.path).path
            if found := CACHED.fullmatch(path):
                self.say_small(*self.found(found[1], found[2], found[3]), unquote(found[4]))
            elif found := API.fullmatch(path):
                repository = self.found(found[1], found[2], found[4] or "main")
                if repository[1] is not None:
                    self.answer_api(*repository, found[3], unquote(found[5] or ""))
            elif found := RESOLVE.fullmatch(path):
                repository = self.found(found[1] or "models", found[2], found[3])
                if repository[1] is not None:
                    self.answer_resolve(*repository, found[4])
            else:
                self.say(404)

        def found(self, kinds, name, revision):
            """The id and the commit; or None, and it is refused already, as the real one does it."""
            key = (kinds[:-1], name)
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if token and token not in hub.members and token not in ("known",):
                self.say_json(
                    401,
                    {"error": "Invalid credentials in Authorization header"},
                    X_Error_Message="Invalid credentials in Authorization header",
                )
            elif key not in hub.repositories or (key in hub.private and token not in hub.members):
                self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            elif key in hub.gated and token not in hub.members:
                reason = (
                    f"Access to model {name} is restricted and you are not in the authorized list. "
                    f"Visit https://huggingface.co/{name} to ask for access."
                    if token
                    else f"Access to model {name} is restricted. You must have access to it and be authenticated to "
                    "access it. Please log in."
                )
                self.refuse(403 if token else 401, "GatedRepo", reason)
            elif unquote(revision) not in hub.repositories[key]:
                self.refuse(404, "RevisionNotFound", f"Invalid rev id: {unquote(revision)}")
            else:
                return key, hub.repositories[key][unquote(revision)]
            return key, None

        def answer_api(self, key, commit, what, folder):
            if what != "tree":
                self.say_json(200, {"_id": "0" * 24, "id": key[1], "sha": commit.sha, "private": key in hub.private})
                return
            asked = parse_qs(urlsplit(self.path).query)
            entries = [entry for entry in commit.entries() if not folder or entry["path"].startswith(folder + "/")]
            if folder and not entries:
                self.refuse(404, "EntryNotFound", f"{folder} does not exist on {commit.sha}")
                return
            if asked.get("recursive", ["false"])[0].lower() != "true":
                depth = folder.count("/") + 1 if folder else 0
                entries = [entry for entry in entries if entry["path"].count("/") == depth]
            entries += hub.extra_entries
            start = int(asked.get("cursor", ["0"])[0])
            end = start + hub.page_entries
            more = {}
            if end < len(entries):
                # The real hub names itself here, also behind a mirror.
                tree = f"https://huggingface.co{urlsplit(self.path).path}"
                more["Link"] = f'<{tree}?recursive=true&expand=false&cursor={end}>; rel="next"'
            self.say_json(200, entries[start:end], **more)

        def answer_resolve(self, key, commit, path):
            data = commit.files.get(unquote(path))
            if data is None:
                self.refuse(404, "EntryNotFound", "Entry not found")
                return
            entry = commit.entry(path, data)
            tag = entry["lfs"]["oid"] if "lfs" in entry else entry["oid"]
            told = {"X_Repo_Commit": commit.sha, "X_Linked_Size": len(data), "X_Linked_ETag": f'"{tag}"'}
            told |= {"Accept_Ranges": "bytes", **hub.changed_headers}
            if "lfs" in entry:
                where = f"{hub.cdn_url}/{key[1]}/{entry['xetHash']}?X-Amz-Expires=3600&Signature=abc"
                self.say(302, Location=where, **told)
            else:
                where = f"/api/resolve-cache/{key[0]}s/{key[1]}/{commit.sha}/{path}?etag={quote(tag)}"
                self.say(307, Location=where, **told)

        def say_small(self, key, commit, path):
            data = commit.files[path]
            told = {"X_Repo_Commit": commit.sha, "ETag": f'"{oid(data)}"', **hub.changed_headers}
            self.say_range(data, with_ranges=hub.ranges, **told)

    return Handler


def _cdn_handler(hub):
    class Handler(_Handler):
        def do_GET(self):
            if self.noted(hub.cdn_requests, hub.cdn_troubles):
                return
            xet = urlsplit(self.path).path.rpartition("/")[2]
            for commits in hub.repositories.values():
                for commit in commits.values():
                    for path, data in commit.files.items():
                        if commit.entry(path, data).get("xetHash") == xet:
                            cut = hub.cuts.pop(0) if hub.cuts else None
                            self.say_range(data, with_ranges=hub.ranges, cut=cut, ETag=f'"{xet}"')
                            return
            self.say(404)

    return Handler


class _Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        # A reader that has what it wanted hangs up.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def hub_stand_in():
    hub = HubStandIn()
    with ExitStack() as stack:
        for name, handler in (("url", _hub_handler(hub)), ("cdn_url", _cdn_handler(hub))):
            server = stack.enter_context(_Server(("127.0.0.1", 0), handler))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            setattr(hub, name, f"http://127.0.0.1:{server.server_address[1]}")
        yield hub
