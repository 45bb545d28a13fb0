"""A real browser for the pages (Debian's Chromium through playwright), and one study of each kind of evidence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ablationlab.records.results import Results
from conftest import chromium
from report import kinds


def mupdf() -> Any:
    """PyMuPDF without the neural network for layouts that it would load: seconds, and not needed for reading text."""
    sys.modules.setdefault("pymupdf.layout", None)
    import pymupdf

    return pymupdf


@dataclass
class Visit:
    """An open page with everything it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, of the system: playwright's own is not installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def _visits(browser: Any) -> Iterator[Callable[..., Visit]]:
    contexts = []

    def go(
        address: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        ready: bool = True,
        touch: bool = False,
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            has_touch=touch,
            is_mobile=touch,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        made = Visit(context.new_page())
        made.page.on("console", lambda message: made.said.append(f"{message.type}: {message.text}"))
        made.page.on("pageerror", lambda error: made.said.append(f"error: {error}"))
        made.page.on("request", lambda request: made.asked.append(request.url))
        made.page.goto(address)
        if ready:
            made.page.wait_for_selector("body[data-ready]", state="attached", timeout=120_000)
        return made

    yield go
    for context in contexts:
        context.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """Open an address and wait until its charts are drawn."""
    with _visits(browser) as go:
        yield go


@pytest.fixture(scope="module")
def visit_once(browser: Any) -> Iterator[Callable[..., Visit]]:
    """The same for a page that several tests of a module read: to draw its charts takes seconds."""
    with _visits(browser) as go:
        yield go


@pytest.fixture(scope="session")
def csv_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The analysis of a user's table of values."""
    return kinds.csv_study(tmp_path_factory.mktemp("csv"))


@pytest.fixture(scope="session")
def foreign_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A study whose program only prints."""
    return kinds.foreign_study(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="session")
def untied_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A study of an architecture with weights of its own."""
    return kinds.untied_study(tmp_path_factory.mktemp("untied"))


@pytest.fixture(scope="session")
def two_regimes_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A study of two regimes, one of them not registered."""
    return kinds.two_regimes_study(tmp_path_factory.mktemp("regimes"))


@pytest.fixture(scope="session")
def broken_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A study with an arm whose every run diverged."""
    return kinds.broken_study(tmp_path_factory.mktemp("broken"))
