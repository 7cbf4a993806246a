"""The built documentation site: `make docs` runs this file on build/site, plain pytest does not.

The build itself fails for a link to a page or heading that does not exist, a page in no table of contents, and a public
name in no page. Here the HTML is checked, whatever generator has made it.
"""

import inspect
import re
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote_plus, unquote, urlsplit

import click
import pytest

import psworker as ps
from psserver.cli.main import main as psserver
from psworker.launch.cli import main as psworker
from tests.repository.test_docstrings import DOCSTRINGS
from tests.support.browser import MISSING, Browser

#: Modules without an introduction on their page.
NOT_SHOWN = {"psworker", "psworker.autodiff.ops"}
ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
REFERENCE = SITE / "docs" / "reference"
PAGES = sorted(SITE.rglob("*.html"))
#: The attribute with which an element loads something, so that a browser shows the page.
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


#: The headers of tables of up to four columns that are wider than their place.
CUT_OFF = """[...document.querySelectorAll(".table-wrapper")]
    .filter((one) => one.scrollWidth > one.clientWidth && one.querySelector("tr").cells.length <= 4)
    .map((one) => one.querySelector("tr").innerText)"""
#: How many pairs of colors of text and ground a page has, and those with a ratio below that of WCAG 2.1, 1.4.3.
CONTRASTS = """(() => {
    const layer = (color) => color.match(/[\\d.]+/g).map(Number);
    const over = ([r, g, b, alpha = 1], ground) => [r, g, b].map((one, i) => alpha * one + (1 - alpha) * ground[i]);
    const ground = (one) =>
        one ? over(layer(getComputedStyle(one).backgroundColor), ground(one.parentElement)) : [255, 255, 255];
    const linear = (part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const pairs = {};
    for (const one of document.querySelectorAll("body *:not(svg *)")) {
        const texts = [...one.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
        if (!texts.length || !one.checkVisibility()) continue;
        const { color, fontSize } = getComputedStyle(one);
        const below = ground(one);
        const [low, high] = [over(layer(color), below), below].map(luminance).sort((a, b) => a - b);
        const large = parseFloat(fontSize) >= 24;
        pairs[[color, below, large]] = (high + 0.05) / (low + 0.05) / (large ? 3 : 4.5);
    }
    return [Object.keys(pairs).length, Object.keys(pairs).filter((pair) => pairs[pair] < 1)];
})()"""


class Page(HTMLParser):
    """The anchors of a page, its links, and the addresses of what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in LOADS and values.get(LOADS[tag]):
            self.loaded.append(values[LOADS[tag]])


page_at = cache(Page)


def target_of(path, link):
    """The file and the anchor that a link on a page at this path leads to."""
    parts = urlsplit(link)
    return (path.parent / unquote(parts.path)).resolve() if parts.path else path, unquote(parts.fragment)


def test_every_page_of_the_documentation_is_on_the_site_and_the_first_one_is_found():
    sources = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "datasets").glob("*/*.md")]
    assert len(sources) > 20
    assert [path for path in sources if not (SITE / path.relative_to(ROOT)).with_suffix(".html").exists()] == []
    assert 'url=README.html"' in page_at(SITE / "index.html").text


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(SITE)))
def test_a_page_loads_only_files_of_the_site_and_its_links_inside_lead_somewhere(path):
    page = page_at(path)
    assert [address for address in page.loaded if urlsplit(address).netloc] == []
    for link in (*page.links, *page.loaded):
        if not urlsplit(link).scheme:
            file, anchor = target_of(path, link)
            assert file.is_file(), link
            assert not anchor or anchor in page_at(file).anchors, link


@pytest.fixture(scope="module")
def browser():
    if MISSING:
        pytest.skip(MISSING)
    with Browser() as opened:
        yield opened


def test_the_search_lists_first_the_page_that_newcomers_look_for(browser):
    pages = {
        "tutorial": "first-hour",
        "custom optimizer": "models",
        "gpu": "choosing",
        "resume": "checkpoints",
        "csv": "data",
        "early stopping": "data",
    }
    for words, page in pages.items():
        browser.open(f"file://{SITE}/search.html?q={quote_plus(words)}")
        first = browser.wait_for("document.querySelector('ul.search li a')?.getAttribute('href')")
        assert first.startswith(f"docs/{page}.html"), words


def test_on_a_phone_no_page_is_wider_than_the_window_and_a_table_of_four_columns_is_seen_whole(browser):
    browser.resize(390, 900)
    for path in PAGES:
        browser.open(path.as_uri())
        assert browser.value("document.documentElement.scrollWidth") <= 390, path
        assert browser.value(CUT_OFF) == [], path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_the_contrast_of_wcag_aa(browser, scheme):
    browser.media(scheme)
    for name in (
        "README",
        "docs/pytorch",
        "docs/first-hour",
        "docs/models",
        "docs/reference/session",
        "docs/reference/protocol",
    ):
        browser.open((SITE / f"{name}.html").as_uri())
        count, faint = browser.value(CONTRASTS)
        assert count > 5
        assert faint == [], name


def test_style_sheets_load_nothing_from_elsewhere():
    sheets = list(SITE.rglob("*.css"))
    assert sheets
    for path in sheets:
        addresses = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", path.read_text(encoding="utf-8"))
        assert [address for address in addresses if re.match(r"(https?:)?//", address)] == [], path


def test_the_reference_has_every_public_name():
    anchors = set().union(*(page_at(path).anchors for path in REFERENCE.glob("*.html")))
    modules = {
        "callbacks": ps.callbacks.__all__,
        "data": ["Queue"],
        "datasets": ["mnist"],
        "errors": ps.errors.FAMILY,
        "metrics": ps.metrics.__all__,
        "nn": ps.nn.__all__,
        "ops": ps.ops.__all__,
    }
    modules |= {"initializers": ps.initializers.__all__, "schedules": ps.schedules.__all__}
    names = {f"psworker.{module}.{name}" for module, inside in modules.items() for name in inside}
    names |= {f"psworker.{name}" for name in {*ps.__all__} - {*modules} - {*ps.initializers.__all__}}
    methods = {"psworker.Session.batches", "psworker.Optimizer.minimize", "psworker.Variable.assign"}
    assert sorted((names | methods) - anchors) == []


def test_the_reference_has_every_option_of_every_command_with_its_environment_variable():
    page = page_at(REFERENCE / "commands.html")
    text = re.sub(r"<[^>]+>", "", page.text)
    for name, command in [*psserver.commands.items(), *psworker.commands.items()]:
        program = "psserver" if name in psserver.commands else "psworker"
        prefix = command.context_settings.get("auto_envvar_prefix", f"PSSERVER_{name}".upper())
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert f"{program}-{name}-{option.name}".replace("_", "-") in page.anchors
                assert option.opts[0] in text
                assert not option.show_envvar or (option.envvar or f"{prefix}_{option.name.upper()}") in text


def test_the_protocol_page_has_every_call_and_message():
    page = page_at(REFERENCE / "protocol.html")
    text = unescape(re.sub(r"<[^>]+>", "", page.text))
    protos = "".join(path.read_text() for path in (ROOT / "protos/pswire/v1").glob("*.proto"))
    messages = re.findall(r"^(?:message|service|enum) (\w+)", protos, re.MULTILINE)
    assert len(messages) > 50
    assert {name.lower() for name in messages} <= page.anchors
    calls = re.findall(r"rpc \w+\(.*\) returns \(.*\)", protos)
    assert len(calls) > 10
    assert [call for call in calls if call not in text] == []
    assert "behaviour that it does not mention may change" in " ".join(text.split())


def signature(page, name):
    """The text of a name and its parameters."""
    after = page_at(REFERENCE / page).text.split(f'id="{name}"')[1].split("</dt>")[0].partition(">")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", "", after)).split())


def test_signatures_show_what_the_source_says_and_ops_take_what_tensors_are_made_of():
    adam = "class psworker.Adam( learning_rate: LearningRate = 0.001, beta1: Share = 0.9,"
    assert signature("optimizers.html", "psworker.Adam").startswith(adam)
    add = "psworker.ops.add(a: TensorLike, b: TensorLike, /) \N{RIGHTWARDS ARROW} Tensor"
    assert signature("ops.html", "psworker.ops.add").startswith(add)
    assign = signature("variables.html", "psworker.Variable.assign")
    assert assign.startswith("assign(value: TensorLike) \N{RIGHTWARDS ARROW} None")


def test_names_in_the_text_are_links_to_the_reference():
    models = page_at(SITE / "docs" / "models.html").links
    assert {f"reference/ops.html#psworker.ops.{name}" for name in ps.ops.__all__} <= set(models), "the table of all ops"
    assert "reference/gradients.html#psworker.check_gradients" in models
    theirs = page_at(SITE / "docs" / "coming-from" / "pytorch.html").links
    assert theirs.count("../reference/layers.html#psworker.nn.Embedding") == 1, "in the column of PyTorch it is another"
    assert "reference/protocol.html#tensor" in page_at(SITE / "docs" / "protocol.html").links, "a message, and no class"
    session = page_at(REFERENCE / "session.html").links
    assert session.count("#psworker.Session.assign_all") > 2, "beside its own anchor and the table of contents"


def test_docstrings_are_shown_word_for_word():
    """Paragraphs of prose: nothing in them is taken for emphasis or a list."""
    quotes = str.maketrans(
        {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2026": "...", "\u2013": "--"}
    )
    pages = [unescape(re.sub(r"<[^>]+>", "", page_at(path).text)) for path in REFERENCE.glob("*.html")]
    shown = re.sub(r"\s", "", "".join(pages)).translate(quotes)
    public = {name: text for name, text in DOCSTRINGS.items() if "._" not in name and name not in NOT_SHOWN}
    assert len(public) > 250
    for name, docstring in public.items():
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
            if not re.match(r"(    |- |(Args|Returns|Raises|Yields|Attributes):)", paragraph):
                assert re.sub(r"[\s`]", "", paragraph) in shown, (name, paragraph)
