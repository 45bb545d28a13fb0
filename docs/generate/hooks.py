"""Hooks of mkdocs: they add the generated reference, and the files of the repository that pages link to."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import reference

#: Pages that lie outside of docs/, which is the root of the site.
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "studies/embedding-norm.md")
#: What stands for a folder that a page links to, the first that is there.
FACES = ("README.md", "report.html", "study.toml", "verdict.json", "paper.pdf")
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
#: A section of docs/reference.md stands for a generated page, which GitHub does not have.
_SECTION = re.compile(r"(?<=\]\()reference\.md#(\w+)")


def on_files(files: Files, config: Any) -> Files:
    """Add what is generated, pages from elsewhere, and every other file that a page links to."""
    written = [page.src_uri for page in files.documentation_pages()]
    for uri, text in reference.pages().items():
        files.append(File.generated(config, uri, content=text))
    for uri in PAGES:
        files.append(File.generated(config, uri, abs_src_path=str(reference.REPOSITORY / uri)))
    pages = [*written, *PAGES]
    for page in pages:
        for link in _LINK.findall(_source(page).read_text()):
            target = _target(link, page)
            if target is not None and files.get_file_from_path(_uri(target)) is None:
                files.append(File.generated(config, _uri(target), abs_src_path=str(target)))
                pages += [_uri(target)] if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links at the places that files have in the site."""
    uri = page.file.src_uri
    markdown = _SECTION.sub(r"reference/\1.md", markdown)
    return markdown if uri in reference.PAGES else _LINK.sub(lambda link: _rewritten(link[1], uri), markdown)


def _source(uri: str) -> Path:
    inside = reference.REPOSITORY / "docs" / uri
    return inside if inside.is_file() else reference.REPOSITORY / uri


def _target(link: str, uri: str) -> Path | None:
    """The file that a link of a page means; None for an address, a generated page, and what is not there."""
    if re.match(r"\w+:", link):
        return None
    target = Path(posixpath.normpath(_source(uri).parent / link))
    if target.is_dir():
        return next((target / name for name in FACES if (target / name).exists()), None)
    return target if target.is_file() else None


def _uri(target: Path) -> str:
    return target.relative_to(reference.REPOSITORY).as_posix().removeprefix("docs/")


def _rewritten(link: str, uri: str) -> str:
    target = _target(link, uri)
    return link if target is None else posixpath.relpath(_uri(target), posixpath.dirname(uri) or ".")
