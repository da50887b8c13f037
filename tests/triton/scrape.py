"""Reads /metrics."""

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tandem.metrics import FINISHED, HEARTBEAT

PATIENCE_S = 240.0  # for a busy machine
STILL_S = 1.5  # longer than the pause between two reports
OWN_LABELS = ("model", "version", "load")


def read(urls):
    """Samples of this model by name and labels beside its own; of its loads those of the one whose
    heart beat last, for a process that was killed leaves its own on /metrics."""
    with urllib.request.urlopen(f"http://{urls.metrics}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    of_loads, last = {}, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "load" in sample.labels:  # (the front's are of no model)
                labels = {k: v for k, v in sample.labels.items() if k not in OWN_LABELS}
                found = of_loads.setdefault(sample.labels["load"], {})
                found[sample.name, *sorted(labels.items())] = sample.value
                if sample.name == HEARTBEAT:
                    last[sample.labels["load"]] = sample.value
    return of_loads[max(last, key=last.get)] if last else {}


def waited(urls, holds):
    """The samples once they are as expected, or at last."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = read(urls)
        if holds(found) or time.monotonic() > end:
            return found
        time.sleep(0.2)


def settled(urls):
    """The samples when nobody is served and all was reported: none changes for a while."""
    found, since = read(urls), time.monotonic()
    while time.monotonic() - since < STILL_S:
        time.sleep(0.1)
        before, found = found, read(urls)
        if without_heartbeat(found) != without_heartbeat(before):
            since = time.monotonic()
    return found


def ended(samples, reason):
    """Requests that have ended for it."""
    return samples.get((FINISHED, ("finished_reason", reason)), 0)


def without_heartbeat(samples):
    """What stands still when nothing happens."""
    return {key: value for key, value in samples.items() if key != (HEARTBEAT,)}
