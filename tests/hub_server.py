"""A small Hub on loopback: what the client of huggingface_hub needs to create, commit, list and download.

Contents are in memory. As on the real Hub, weights and other binary files go over git LFS, and their download is a
redirect away from the repository; text files come inside the commit. Xet, which replaces LFS where `hf_xet` is
installed, is a storage of its own with a protocol of its own, and the client tries no other once it sees the library:
tests set `HF_HUB_DISABLE_XET=1`, and the same client then speaks LFS.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_test"
USER = "me"
ENVIRONMENT = {"HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@dataclass
class File:
    """A file of a commit; `is_lfs` when the repository itself holds a pointer only."""

    content: bytes
    is_lfs: bool

    @property
    def etag(self) -> str:
        """As git and LFS name contents."""
        if self.is_lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass
class Commit:
    """All files of a repository at one time."""

    sha: str
    title: str
    files: dict[str, File]


@dataclass
class Repository:
    """Commits of each branch, the first one empty, and all large objects that were uploaded."""

    id: str
    private: bool = False
    branches: dict[str, list[Commit]] = field(default_factory=lambda: {"main": [Commit("0" * 40, "initial", {})]})

    def find(self, revision: str) -> Commit | None:
        """The commit that a branch or a hash names."""
        if revision in self.branches:
            return self.branches[revision][-1]
        commits = (commit for branch in self.branches.values() for commit in branch)
        return next((commit for commit in commits if commit.sha == revision), None)


class Refused(Exception):
    """An answer other than success: status, code of the Hub's, message."""

    def __init__(self, status: int, message: str, code: str = ""):
        super().__init__(message)
        self.status, self.code = status, code


class HubServer(ThreadingHTTPServer):
    """The state of the Hub: repositories by their id, uploaded objects by their hash, and what was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []

    def files(self, repo_id: str) -> dict[str, File]:
        """The files of a repository's main branch."""
        return self.repositories[repo_id].branches["main"][-1].files


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def _serve(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        self.server.requests.append(f"{self.command} {unquote(url.path)}")
        try:
            if self.command in ("POST", "PUT") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                if not url.path.startswith(("/objects/", "/api/validate-yaml")):  # whose address is the secret
                    raise Refused(401, "Invalid username or password.")
            self._route(url.path.strip("/").split("/"))
        except Refused as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": str(refused)} if refused.code else {}
            self._answer(refused.status, {"error": str(refused)}, headers)

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _route(self, parts: list[str]) -> None:
        match parts:
            case ["api", "whoami-v2"]:
                self._answer(200, {"type": "user", "name": USER, "auth": {"type": "access_token"}, "orgs": []})
            case ["api", "validate-yaml"]:
                self._validate_card(json.loads(self.body)["content"])
            case ["api", "repos", "create"]:
                self._create(json.loads(self.body))
            case ["objects", oid] if self.command == "PUT":
                if hashlib.sha256(self.body).hexdigest() != oid:
                    raise Refused(400, "the content has another hash")
                self.server.objects[oid] = self.body
                self._answer(200, {})
            case ["objects", oid]:
                self._send(200, self.server.objects[oid], {"ETag": f'"{oid}"'})
            case ["api", "models", owner, name, *rest]:
                self._api(f"{owner}/{name}", rest)
            case [owner, name, "info", "lfs", "objects", "batch"]:
                self._repository(f"{owner}/{name.removesuffix('.git')}")
                self._answer(200, {"objects": list(map(self._upload_action, json.loads(self.body)["objects"]))})
            case [owner, name, "resolve", revision, *path]:
                self._resolve(f"{owner}/{name}", unquote(revision), unquote("/".join(path)))
            case _:
                raise Refused(404, f"no such address: {self.command} {self.path}")

    def _repository(self, repo_id: str) -> Repository:
        if repo_id not in self.server.repositories:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return self.server.repositories[repo_id]

    def _commit_of(self, repository: Repository, revision: str) -> Commit:
        commit = repository.find(revision)
        if commit is None:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def _create(self, wanted: dict) -> None:
        repo_id = f"{wanted.get('organization') or USER}/{wanted['name']}"
        url = f"{self.server.url}/{repo_id}"
        if repo_id in self.server.repositories:
            self._answer(409, {"error": "You already created this model repo", "url": url})
        else:
            self.server.repositories[repo_id] = Repository(repo_id, private=wanted.get("visibility") == "private")
            self._answer(200, {"url": url, "name": repo_id})

    def _validate_card(self, content: str) -> None:
        errors = []
        try:
            metadata = yaml.safe_load(content.split("---")[1]) if content.startswith("---") else {}
            errors = [] if isinstance(metadata, dict) else [{"message": "the metadata is no mapping"}]
        except yaml.YAMLError as error:
            errors = [{"message": str(error)}]
        self._answer(400 if errors else 200, {"errors": errors, "warnings": []})

    def _upload_action(self, wanted: dict) -> dict:
        if wanted["oid"] in self.server.objects:
            return wanted
        return {**wanted, "actions": {"upload": {"href": f"{self.server.url}/objects/{wanted['oid']}"}}}

    def _api(self, repo_id: str, rest: list[str]) -> None:
        repository = self._repository(repo_id)
        actions: dict[str, Callable[[Repository, str, list[str]], dict | list]] = {
            "preupload": self._preupload,
            "commit": self._commit,
            "branch": self._branch,
            "tree": self._tree,
        }
        action, revision, *path = [*map(unquote, rest), "", ""][: max(2, len(rest))]
        if action in actions:
            self._answer(200, actions[action](repository, revision, path))
        elif action in ("", "revision"):
            self._answer(200, self._info(repository, self._commit_of(repository, revision or "main")))
        else:
            raise Refused(404, f"no such address: {self.path}")

    def _preupload(self, repository: Repository, revision: str, path: list[str]) -> dict:
        present = self._commit_of(repository, revision).files
        modes = []
        for wanted in json.loads(self.body)["files"]:
            name, sample = wanted["path"], base64.b64decode(wanted["sample"])
            mode = "lfs" if name.endswith(".safetensors") or b"\0" in sample else "regular"
            oid = present[name].etag if name in present else None
            modes.append({"path": name, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": modes}

    def _commit(self, repository: Repository, revision: str, path: list[str]) -> dict:
        lines = [json.loads(line) for line in self.body.splitlines()]
        files = dict(self._commit_of(repository, revision).files)
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    files[value["path"]] = File(base64.b64decode(value["content"]), is_lfs=False)
                case "lfsFile":
                    files[value["path"]] = File(self.server.objects[value["oid"]], is_lfs=True)
                case "deletedFile":
                    del files[value["path"]]
                case other:
                    raise Refused(400, f"unknown operation {other}")
        branch = repository.branches[revision]
        sha = hashlib.sha1(self.body + branch[-1].sha.encode()).hexdigest()
        branch.append(Commit(sha, lines[0]["value"]["summary"], files))
        return {"commitUrl": f"{self.server.url}/{repository.id}/commit/{sha}", "commitOid": sha, "success": True}

    def _branch(self, repository: Repository, name: str, path: list[str]) -> dict:
        if name in repository.branches:
            raise Refused(409, "Reference already exists")
        repository.branches[name] = repository.branches["main"][:]
        return {}

    def _tree(self, repository: Repository, revision: str, path: list[str]) -> list[dict]:
        folder = "".join(f"{part}/" for part in path)
        files = {n: f for n, f in self._commit_of(repository, revision).files.items() if n.startswith(folder)}
        if path and not files:
            raise Refused(404, f"{folder} does not exist", "EntryNotFound")
        return [
            {"type": "file", "path": name, "size": len(file.content), "oid": file.etag}
            | ({"lfs": {"oid": file.etag, "size": len(file.content), "pointerSize": 130}} if file.is_lfs else {})
            for name, file in files.items()
        ]

    def _info(self, repository: Repository, commit: Commit) -> dict:
        card = commit.files.get("README.md", File(b"", False)).content.decode()
        metadata = yaml.safe_load(card.split("---")[1]) if card.startswith("---") else {}
        return {
            "id": repository.id,
            "modelId": repository.id,
            "sha": commit.sha,
            "private": repository.private,
            "tags": metadata.get("tags") or [],
            "pipeline_tag": metadata.get("pipeline_tag"),
            "library_name": metadata.get("library_name"),
            "cardData": metadata,
            "siblings": [{"rfilename": name} for name in commit.files],
        }

    def _resolve(self, repo_id: str, revision: str, path: str) -> None:
        commit = self._commit_of(self._repository(repo_id), revision)
        headers = {"X-Repo-Commit": commit.sha}
        if path not in commit.files:
            self._answer(404, {}, {**headers, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            return
        file = commit.files[path]
        if file.is_lfs:
            headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(len(file.content))}
            # Another host, as it is in reality: the client reads our headers rather than asking there for its own.
            location = f"http://localhost:{self.server.server_port}/objects/{file.etag}"
            self._send(302, b"", {**headers, "Location": location})
        else:
            self._send(200, file.content, {**headers, "ETag": f'"{file.etag}"'})

    def _answer(self, status: int, answer: dict | list, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(answer).encode()
        self._send(status, body, {"Content-Type": "application/json", **(headers or {})})

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
    """A Hub of its own for the time of the `with`."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
