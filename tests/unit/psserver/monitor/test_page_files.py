"""The files of the live page: complete in themselves, and what comes from a cluster can only become text."""

import re
from itertools import chain
from pathlib import Path

from tests.support.combinations import together

PAGE = Path(__file__).resolve().parents[4] / "psserver" / "monitor" / "page"
FILES = {str(path.relative_to(PAGE)): path.read_text() for path in sorted(PAGE.rglob("*")) if path.is_file()}
SCRIPTS = [name for name in FILES if name.endswith(".js")]


def test_the_page_loads_nothing_from_elsewhere_and_has_no_inline_script_or_style():
    html = FILES["index.html"]
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html) == []
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', html)
    assert set(loaded) - FILES.keys() == {"api/job"}
    sources = chain(*[re.findall(r"https?://[^\s\"')]+", text) for name, text in FILES.items() if name != "icon.svg"])
    assert set(sources) == {"https://jfly.uni-koeln.de/color/"}, "only in a comment, as a source"
    assert re.findall(r"@import|url\(", FILES["style.css"]) == []


@together("name", SCRIPTS)
def test_a_module_imports_what_another_exports_and_makes_no_html_of_text(name):
    text = FILES[name]
    for names, path in re.findall(r'^import \{([^}]+)\} from "([^"]+)";', text, re.MULTILINE):
        source = FILES[str((PAGE / name).parent.joinpath(path).resolve().relative_to(PAGE))]
        exported = set(re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", source, re.MULTILINE))
        wanted = {one.strip() for one in names.split(",")}
        assert wanted <= exported
        body = text.partition(path)[2]
        assert {one for one in wanted if not re.search(rf"\b{one}\b", body)} == set(), "imported and not used"
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text) == []
    assert text.startswith("/**"), "what it is for"
    assert text.count("\n") <= 300
