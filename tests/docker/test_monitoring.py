"""Dashboard and alerts name only metrics that exist; alerts fire where they should."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from tandem.metrics import CATALOGUE, FAILED, FRONT_REFUSED, HEARTBEAT, INTERNAL, REFUSALS, UP

FOLDER = Path(__file__).parents[2] / "docker" / "monitoring"
FRESH = f"and on (instance, load) (time() - {HEARTBEAT} < 30)"
"""Of a gauge: what a model's process said last stays when it has ended."""
KINDS = {one.name: one.kind for one in (*CATALOGUE, FRONT_REFUSED)}
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


def family_of(name):
    """A histogram's has several names."""
    return re.sub("_(bucket|sum|count)$", "", name)


def names_in(expression):
    return re.findall(r"\btandem_\w+", expression)


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_only_metrics_that_exist_are_named(title, expression):
    names = names_in(expression)
    assert names
    for name in names:
        if name != (family := family_of(name)):
            assert KINDS[family] == "histogram"
        else:
            assert KINDS[name] in ("counter", "gauge")


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_prometheus_can_read_it(title, expression):
    assert promql_parser.parse(expression.replace("$__rate_interval", "1m"))


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_counters_are_shown_as_rates(title, expression):
    for name in names_in(expression):
        if KINDS.get(name) == "counter" and not title.startswith("restarts"):
            assert re.search(rf"(rate|increase)\({name}\b", expression), expression


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_only_labels_that_exist_are_named(title, expression):
    used = re.findall(r"(\w+)=~?\"", expression)
    used += re.findall(r"(?:by|ignoring|on) \(([^)]*)\)", expression)
    assert {label.strip() for group in used for label in group.split(",")} <= LABELS
    assert set(re.findall(r"{{(\w+)}}", title)) <= LABELS


@pytest.mark.parametrize(("title", "expression"), expressions())
def test_gauges_count_while_their_process_lives(title, expression):
    gauges = {name for name in names_in(expression) if KINDS.get(name) == "gauge"}
    if gauges - {UP, HEARTBEAT} or title.startswith("restarts"):
        assert FRESH in " ".join(expression.split())


def test_the_dashboard_shows_one_model_and_any_instances():
    for variable in dashboard()["templating"]["list"][1:]:
        assert variable["query"].startswith("label_values(tandem_engine_up")
    of_instances = 'instance=~"$instance"}'
    chosen = f'{{model="$model", {of_instances}'
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            names = [name for name in names_in(target["expr"]) if name != HEARTBEAT]
            for name in names:  # (the front's are of no model)
                those = f"{{{of_instances}" if name == FRONT_REFUSED.name else chosen
                assert f"{name}{those}" in target["expr"]
            assert ("{{instance}}" in target["legendFormat"]) != ("by (le)" in target["expr"])


def test_every_family_is_on_the_dashboard():
    shown = {
        family_of(name)
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
        "max by (job, instance, model) (present_over_time(tandem_engine_up[1d])) "
        "and on (job, instance) up unless on (job, instance, model) tandem_engine_up",
        "absent(tandem_engine_up)\n",
    ]
    assert "tandem_engine_restarts_total[10m]" in found["TandemEngineRestarting"]["expr"]
    refused = re.search(r'reason=~"(.*)"', found["TandemRequestsRefused"]["expr"])
    assert refused
    assert set(refused[1].split("|")) == set(REFUSALS.values()) - {"invalid"}
    assert "num_draft_positions_total[10m]) < 0.4" in found["TandemLowAcceptance"]["expr"]
    assert {"TandemEngineDown", "TandemKVCacheFull", "TandemQueueGrowing"} <= set(found)
    assert f'{FAILED}{{reason="engine_lost"}}' in found["TandemRequestsLost"]["expr"]
    assert "engine_lost" not in REFUSALS.values()
    assert f'{FAILED}{{reason="{INTERNAL}"}}' in found["TandemInternalErrors"]["expr"]
    for rule in found.values():
        assert rule["annotations"].keys() == {"summary", "description"}


def config():
    return yaml.safe_load((FOLDER / "prometheus.yml").read_text())


def test_prometheus_reads_the_rules():
    assert config()["rule_files"] == ["rules.yml"]


def promtool(*arguments, cwd=FOLDER):
    return subprocess.run(
        ["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


evaluated = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus"
)


@evaluated
def test_prometheus_takes_its_configuration_and_the_rules():
    checked = promtool("check", "config", "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "rules.yml" in checked.stdout


@evaluated
def test_alerts_fire_where_they_should_and_nowhere_else():
    tried = promtool("test", "rules", "rules_test.yml")
    assert tried.returncode == 0, tried.stdout + tried.stderr


def bent():
    """Each alert left out, each condition of it that may be."""
    bends = {
        name: (re.compile(rf"- alert: {name}\b.*?(?=- alert|\Z)", re.DOTALL), "")
        for name in rules()
    }
    for name in ("TandemKVCacheFull", "TandemQueueGrowing"):
        rest = rf"(- alert: {name}\b(?:(?!- alert).)*?)\s+{re.escape(FRESH)}"
        bends[f"{name}, fresh or not"] = re.compile(rest, re.DOTALL), r"\1"
    bends["not by positions"] = re.compile("draft_positions"), "draft_tokens"
    bends["not of lost processes"] = re.compile(r" < bool 30"), " < bool 3000"
    shown = r"or max by \(job, instance, model\) .*\n"
    bends["only of one job"] = re.compile(shown), ""
    bends["of servers of others"] = re.compile(shown), "or up == 0\n"
    bends["only where nobody answers"] = (
        re.compile(r"instance\) up unless"),
        "instance) up == 0 unless",
    )
    bends["only without any model"] = (
        re.compile(r"instance, model\) tandem_e"),
        "instance) tandem_e",
    )
    bends["of targets that are gone"] = re.compile(r" and on \(job, instance\) up"), ""
    return bends


@evaluated
@pytest.mark.parametrize("name", bent())
def test_a_bent_rule_is_noticed(tmp_path, name):
    pattern, instead = bent()[name]
    text, times = pattern.subn(instead, (FOLDER / "rules.yml").read_text())
    assert times
    (tmp_path / "rules.yml").write_text(text)
    shutil.copy(FOLDER / "rules_test.yml", tmp_path)
    tried = promtool("test", "rules", "rules_test.yml", cwd=tmp_path)
    assert tried.returncode and "exp:" in tried.stdout + tried.stderr


def of_two_loads(names):
    """Series of families, of a process that has ended and of one that lives."""
    for load, beats in (("dead", "0+60x3 180+0x9"), ("alive", "0+60x12")):
        labels = f'{{instance="a", model="m", load="{load}"}}'
        for name in names - {HEARTBEAT}:
            rises = KINDS.get(name) != "gauge"
            yield {"series": f"{name}{labels}", "values": "1+1x12" if rises else "1+0x12"}
        yield {"series": f"{HEARTBEAT}{labels}", "values": beats}


@evaluated
def test_panels_leave_out_what_a_lost_process_said_last(tmp_path):
    wanted = [expr for _, expr in expressions() if FRESH in expr and "$model" in expr]
    chosen = {"$model": "m", "$instance": "a|b", "$__rate_interval": "5m"}
    asked = [re.sub(r"\$\w+", lambda name: chosen[name[0]], expr) for expr in wanted]
    tests = [
        {
            "interval": "1m",
            "input_series": list(of_two_loads({*names_in(expr)})),
            "promql_expr_test": [
                {
                    "expr": f"count by (load) ({expr})",
                    "eval_time": "10m",
                    "exp_samples": [{"labels": '{load="alive"}', "value": 1}],
                }
            ],
        }
        for expr in asked
    ]
    assert len(tests) > 5
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": tests}))
    tried = promtool("test", "rules", "test.yml", cwd=tmp_path)
    assert tried.returncode == 0, tried.stdout + tried.stderr
