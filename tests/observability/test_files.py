"""deploy/observability/: alerts and dashboard use metrics that exist, and docs/observability.md lists all of these."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.psserver.monitor.full_report import all_families, full_text

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "observability"
ALERTS, ALERT_TESTS = FOLDER / "alerts.yml", Path(__file__).with_name("alerts_test.yaml")
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())


def expressions():
    """All expressions of the dashboard, with values for its variables."""
    targets = [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    notes = DASHBOARD["annotations"]["list"]
    found = [one["expr"] for one in [*targets, *notes]]
    return [one.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*") for one in found]


def used(text):
    """Names of metrics in a text, without the endings of histograms and summaries."""
    names = re.findall(r"\b((?:paramserver|process)_\w+)", text)
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


def test_alerts_and_dashboard_use_metrics_that_exist_and_the_dashboard_all_of_a_shard():
    families = all_families()
    assert used(ALERTS.read_text()) - families.keys() == set()
    shown = set().union(*map(used, expressions()))
    assert shown - families.keys() == set()
    of_shards = {name for name in families if not name.startswith(("paramserver_job_", "process_"))}
    assert of_shards - shown == {"paramserver_build_info", "paramserver_shard_info", "paramserver_variables"}


def test_the_dashboard_has_panels_with_ids_and_places_of_their_own_and_the_variables_that_it_uses():
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 30
    cells = set()
    for panel in panels:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        own = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert not own & cells, panel["title"]
        assert x + w <= 24, panel["title"]
        cells |= own
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == variables == {"datasource", "job", "instance"}


def test_the_table_of_the_page_lists_all_metrics_with_their_types_labels_and_meanings():
    text = (ROOT / "docs" / "observability.md").read_text().partition("\n## Metrics")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    documented = {name: (kind, tuple(sorted(re.findall(r"`(\w+)`", labels)))) for name, kind, labels, _ in rows}
    families = all_families()
    ours = {name: (kind, labels) for name, (kind, _, labels) in families.items() if name.startswith("paramserver_")}
    assert documented == ours
    assert [name for name, kind, labels, meaning in rows if len(meaning) < 10] == []


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    alerts = re.findall(r"alert: (\w+)", ALERTS.read_text())
    text = ALERT_TESTS.read_text()
    assert len(alerts) >= 8
    for alert in alerts:
        assert re.search(rf"- alertname: {alert}\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels", text), alert
        assert re.search(rf"alertname: {alert}, eval_time: \w+, exp_alerts: \[\]", text), alert
        assert f"`{alert}`" in (ROOT / "docs" / "observability.md").read_text(), alert


def promtool(*arguments, text=None):
    """Runs promtool, which must find nothing."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    command = ["promtool", *arguments]
    ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("place", [0, 1], ids=["server", "monitor"])
def test_promtool_accepts_all_metrics_of_a_server_and_of_a_monitor(place):
    promtool("check", "metrics", text=full_text()[place])


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", str(ALERTS)),
        ("check", "config", str(FOLDER / "prometheus.yml")),
        ("test", "rules", str(ALERT_TESTS)),
    ],
    ids=["check rules", "check config", "test rules"],
)
def test_promtool_accepts_rules_and_configuration_and_each_alert_fires_when_it_must(arguments):
    promtool(*arguments)
