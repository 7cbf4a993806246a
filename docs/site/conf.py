"""Configuration of the documentation site, for Sphinx: `make docs` builds it in build/site.

The root of the sources is the repository, so that links between pages are the same files here and on GitHub.
"""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

project = "paramserver"
version = release = installed_version("paramserver")
language = "en"
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md", "datasets/*/README.md"]
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("docs", "datasets")]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# Beside this file:
extensions += ["markdown_docstrings", "signatures", "public_names", "command_lines", "protocol", "site_pages"]
myst_enable_extensions = ["fieldlist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # the changelog begins its sections at the second level

autodoc_default_options = {"members": True, "member-order": "bysource", "special-members": "__call__"}
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"
highlight_language = "default"

html_theme = "furo"
html_title = f"paramserver {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "to_start_page.html"}
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {
    "source_repository": "https://github.com/paramserver/paramserver/",
    "source_branch": "main",
    "source_directory": "",
}
