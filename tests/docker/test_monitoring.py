"""Dashboard and alerts name only metrics that exist."""

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml

from tandem.metrics import CATALOGUE, FAILED, REFUSALS

FOLDER = Path(__file__).parents[2] / "docker" / "monitoring"
KINDS = {one.name: one.kind for one in CATALOGUE}
LABELS = {
    "model",
    "version",
    "load",
    "instance",
    "job",
    "le",
    *(one.label for one in CATALOGUE if one.label),
}


def dashboard():
    return json.loads((FOLDER / "grafana" / "tandem.json").read_text())


def rules():
    (group,) = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def expressions():
    targets = [target for panel in dashboard()["panels"] for target in panel["targets"]]
    alerts = [(name, rule["expr"]) for name, rule in rules().items()]
    return [(target["legendFormat"], target["expr"]) for target in targets] + alerts


def names_in(expression):
    return re.findall(r"\btandem_\w+", expression)


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_only_metrics_that_exist_are_named(title, expression):
    names = names_in(expression)
    assert names
    for name in names:
        if name.endswith("_bucket"):
            assert KINDS[name.removesuffix("_bucket")] == "histogram"
        else:
            assert KINDS[name] in ("counter", "gauge")


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_prometheus_can_read_it(title, expression):
    assert promql_parser.parse(expression.replace("$__rate_interval", "1m"))


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_counters_are_shown_as_rates(title, expression):
    for name in names_in(expression):
        if KINDS.get(name) == "counter" and title != "restarts":
            assert re.search(rf"(rate|increase)\({name}\b", expression), expression


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_only_labels_that_exist_are_named(title, expression):
    used = re.findall(r"(\w+)=\"", expression)
    used += re.findall(r"(?:by|ignoring) \(([^)]*)\)", expression)
    assert {label.strip() for group in used for label in group.split(",")} <= LABELS
    assert set(re.findall(r"{{(\w+)}}", title)) <= LABELS


def test_every_family_is_on_the_dashboard():
    shown = {
        name.removesuffix("_bucket")
        for panel in dashboard()["panels"]
        for target in panel["targets"]
        for name in names_in(target["expr"])
    }
    assert shown == set(KINDS)


def test_what_wakes_an_operator():
    found = rules()
    down, (job,) = found["TandemEngineDown"]["expr"], config()["scrape_configs"]
    fresh = "time() - tandem_heartbeat_timestamp_seconds < bool 30"
    assert down.split(" or ") == [
        f"max by (model, version, instance) (tandem_engine_up * ({fresh})) == 0",
        f'up{{job="{job["job_name"]}"}} == 0',
        "absent(tandem_engine_up)\n",
    ]
    assert "tandem_engine_restarts_total[10m]" in found["TandemEngineRestarting"]["expr"]
    refused = re.search(r'reason=~"(.*)"', found["TandemRequestsRefused"]["expr"])
    assert refused
    assert set(refused[1].split("|")) == set(REFUSALS.values()) - {"invalid"}
    assert "< 0.4" in found["TandemLowAcceptance"]["expr"]
    assert {"TandemEngineDown", "TandemKVCacheFull", "TandemQueueGrowing"} <= set(found)
    assert f'{FAILED}{{reason="engine_lost"}}' in found["TandemRequestsLost"]["expr"]
    assert "engine_lost" not in REFUSALS.values()
    for rule in found.values():
        assert rule["annotations"].keys() == {"summary", "description"}


def config():
    return yaml.safe_load((FOLDER / "prometheus.yml").read_text())


def test_prometheus_reads_the_rules():
    assert config()["rule_files"] == ["rules.yml"]
