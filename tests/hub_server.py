"""A small Hub on loopback, with which the client of huggingface_hub can create, commit, list and
download.

Contents are kept in memory, and every file comes inside its commit. Large files by LFS or Xet,
branches and older commits are left to the client and the real Hub. `HF_HUB_DISABLE_XET` is set
because the client tries no other storage once it finds `hf_xet`.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_test"
USER = "me"
ENVIRONMENT = {
    "HF_TOKEN": TOKEN,
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


@dataclass
class Repository:
    """The files of the last commit, its hash, and the titles of all commits."""

    files: dict[str, bytes] = field(default_factory=dict)
    private: bool = False
    # Whether the files need an agreement that nobody has given.
    gated: bool = False
    sha: str = "0" * 40
    titles: list[str] = field(default_factory=list)


def etag(content: bytes) -> str:
    """The hash by which git names a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Refused(Exception):
    """A request that is refused, with the status, a message and the Hub's own error code."""


class HubServer(ThreadingHTTPServer):
    """The server, and the state of the Hub: its repositories by their id."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        # The methods and paths of all requests.
        self.requests: list[tuple[str, str]] = []

    def files(self, repo_id: str) -> dict[str, bytes]:
        return self.repositories[repo_id].files


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = urlsplit(self.path).path.strip("/")
        self.server.requests.append((self.command, path))
        is_card = "validate-yaml" in self.path
        has_token = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        try:
            # Everybody may have a card checked. Only a user with a token may change something.
            if self.command == "POST" and not is_card and not has_token:
                raise Refused(401, "Invalid username or password.")
            self._route(path.split("/"))
        except Refused as refused:
            status, message, *code = refused.args
            headers = {"X-Error-Code": code[0], "X-Error-Message": message} if code else {}
            self._send(status, json.dumps({"error": message}).encode(), headers)

    do_GET = do_HEAD = do_POST = _serve

    def _route(self, parts: list[str]) -> None:
        match parts:
            case ["api", "whoami-v2"]:
                token = {"type": "access_token"}
                self._answer({"type": "user", "name": USER, "auth": token, "orgs": []})
            case ["api", "validate-yaml"]:
                yaml.safe_load(json.loads(self.body)["content"].split("---")[1])
                self._answer({"errors": [], "warnings": []})
            case ["api", "repos", "create"]:
                wanted = json.loads(self.body)
                repo_id = f"{wanted.get('organization') or USER}/{wanted['name']}"
                repository = Repository(private=wanted.get("visibility") == "private")
                self.server.repositories.setdefault(repo_id, repository)
                self._answer({"url": f"{self.server.url}/{repo_id}", "name": repo_id})
            case ["api", "models", owner, name, "preupload", _]:
                files = json.loads(self.body)["files"]
                modes = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                self._answer({"files": [{"path": file["path"], **modes} for file in files]})
            case ["api", "models", owner, name, "commit", _]:
                self._commit(f"{owner}/{name}")
            case ["api", "models", owner, name, "tree", *_]:
                entries = [
                    {"type": "file", "path": path, "size": len(content), "oid": etag(content)}
                    for path, content in self._repository(f"{owner}/{name}").files.items()
                ]
                self._answer(entries)
            case ["api", "models", owner, name, *_]:
                self._answer(self._info(f"{owner}/{name}"))
            case [owner, name, "resolve", _, *path]:
                repository = self._repository(f"{owner}/{name}")
                if repository.gated:
                    raise Refused(403, "Access to the model is restricted.", "GatedRepo")
                content = repository.files.get(unquote("/".join(path)))
                if content is None:
                    raise Refused(404, "Entry not found", "EntryNotFound")
                headers = {"X-Repo-Commit": repository.sha, "ETag": f'"{etag(content)}"'}
                self._send(200, content, headers)
            case _:
                raise Refused(404, f"no such address: {self.command} {self.path}")

    def _repository(self, repo_id: str) -> Repository:
        if repo_id not in self.server.repositories:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return self.server.repositories[repo_id]

    def _commit(self, repo_id: str) -> None:
        repository = self._repository(repo_id)
        header, *lines = map(json.loads, self.body.splitlines())
        for line in lines:
            value = line["value"]
            repository.files[value["path"]] = base64.b64decode(value["content"])
        repository.sha = hashlib.sha1(self.body + repository.sha.encode()).hexdigest()
        repository.titles.append(header["value"]["summary"])
        url = f"{self.server.url}/{repo_id}/commit/{repository.sha}"
        self._answer({"commitUrl": url, "commitOid": repository.sha, "success": True})

    def _info(self, repo_id: str) -> dict:
        repository = self._repository(repo_id)
        card = repository.files.get("README.md", b"").decode()
        metadata = yaml.safe_load(card.split("---")[1]) if card.startswith("---") else {}
        info = {name: metadata.get(name) for name in ("library_name", "pipeline_tag")}
        info |= {"id": repo_id, "sha": repository.sha, "private": repository.private}
        info |= {"cardData": metadata, "tags": metadata.get("tags") or []}
        return {**info, "siblings": [{"rfilename": name} for name in repository.files]}

    def _answer(self, answer: dict | list) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return None


@contextmanager
def running_hub() -> Iterator[HubServer]:
    """A new Hub, which runs until the end of the `with` statement."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
