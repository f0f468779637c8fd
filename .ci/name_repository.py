"""Name the address of the repository in the metadata, in CITATION.cff and in the README's links.

python .ci/name_repository.py URL REF

The address is stated nowhere else: the release passes the one that it runs in. An index shows the
README without the files beside it, so its relative links become links to the tag `REF`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELATIVE_LINK = re.compile(r"(\]\(|src=\")(?!https?:|#|mailto:)([^)\s\"]+)")
REPOSITORY = "../../"  # Leads from a file of a branch to the pages of the repository.
IMAGE = re.compile(r"\.(?:png|svg|gif|jpe?g)$")


def absolute_links(text: str, url: str, ref: str) -> str:
    """The text with links to files of the repository at a tag."""

    def absolute(link: re.Match) -> str:
        start, target = link.groups()
        if target.startswith(REPOSITORY):
            return f"{start}{url}/{target.removeprefix(REPOSITORY)}"
        view = "raw" if IMAGE.search(target) else "blob"
        return f"{start}{url}/{view}/{ref}/{target}"

    return RELATIVE_LINK.sub(absolute, text)


def with_urls(pyproject: str, url: str, ref: str) -> str:
    """The text of pyproject.toml with the table `[project.urls]`."""
    urls = {
        "Repository": url,
        "Documentation": f"{url}/blob/{ref}/docs/index.md",
        "Changelog": f"{url}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    lines = [f'{name} = "{address}"' for name, address in urls.items()]
    table = "\n".join(["[project.urls]", *lines])
    return pyproject.replace("\n[project.scripts]", f"\n{table}\n\n[project.scripts]")


def main(url: str, ref: str) -> None:
    edits = {
        "README.md": lambda text: absolute_links(text, url, ref),
        "pyproject.toml": lambda text: with_urls(text, url, ref),
        "CITATION.cff": lambda text: f"{text}url: {url}\nrepository-code: {url}\n",
    }
    for name, edit in edits.items():
        path = ROOT / name
        path.write_text(edit(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
