"""The engine's metrics on Triton's /metrics, and in the log."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Any, TypeAlias

import triton_python_backend_utils as pb_utils

from tandem.metrics import CATALOGUE, HEARTBEAT, Key, Kind, Recent, Report, merged
from tandem.minutes import Minutes

logger = logging.getLogger("tandem")

Reports: TypeAlias = "queue.SimpleQueue[Report]"
PAUSE_S = 0.25  # between looks at what has come


class Void:
    """Where reports go of which the log alone tells."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._minutes = Minutes()
        self._closing = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="tandem-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Takes what has come, and ends."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        self.look()
        while not self._closing.wait(PAUSE_S):
            self.look()
        self.look()

    def look(self) -> None:
        """Takes what has come, at once."""
        with self._looking:
            reports: list[Report] = []
            while not self._reports.empty():
                reports.append(self._reports.get())
            self._take(merged(reports))

    def _take(self, report: Report) -> None:
        """What has come together since the last look, which may be nothing."""
        self._minutes.take(report.counts)


class Board(Void):
    """Publishes reports from a thread of its own: each number is a call to Triton."""

    def __init__(self, model: str, version: str, reports: Reports) -> None:
        """reports: where they come from. Raises what Triton raises where it has no metrics."""
        # Were their labels the same, a reloaded model's metrics would go when the old one's do.
        self._labels = {"model": model, "version": version, "load": secrets.token_hex(4)}
        kinds: dict[Kind, Any] = {
            "counter": pb_utils.MetricFamily.COUNTER,
            "gauge": pb_utils.MetricFamily.GAUGE,
            "histogram": pb_utils.MetricFamily.HISTOGRAM,
        }
        self._catalogue = {one.name: one for one in CATALOGUE}
        self._families = {
            one.name: pb_utils.MetricFamily(
                name=one.name, description=one.help, kind=kinds[one.kind]
            )
            for one in CATALOGUE
        }
        self._metrics: dict[Key, Any] = {}
        self._recent = Recent()
        for one in CATALOGUE:
            for member in one.members:
                self._metric(member)
        super().__init__(reports)

    def close(self) -> None:
        """Publishes what it has, and takes the metrics off /metrics."""
        super().close()
        self._metrics.clear()  # before their families, or Triton complains
        self._families.clear()

    def _take(self, report: Report) -> None:
        super()._take(report)
        self._tell(Key(HEARTBEAT), "set", [time.time()])
        for key, count in report.counts.items():
            self._tell(key, "increment", [count])
        of_late = self._recent.gauges(report.counts) if report.counts else {}
        for key, level in {**report.gauges, **of_late}.items():
            self._tell(key, "set", [level])
        for name, values in report.observed.items():
            self._tell(Key(name), "observe", values)

    def _tell(self, key: Key, how: str, values: Iterable[float]) -> None:
        """A number, or some, to Triton, by this method of its metrics."""
        try:
            tell = getattr(self._metric(key), how)
            for value in values:
                tell(value)
        except Exception:  # the other numbers are still told
            logger.exception("%s could not be published.", key.name)

    def _metric(self, key: Key) -> Any:
        if key not in self._metrics:
            one = self._catalogue[key.name]
            labels = self._labels | ({one.label: key.label} if one.label else {})
            more = {"buckets": list(one.buckets)} if one.buckets else {}
            self._metrics[key] = self._families[one.name].Metric(labels=labels, **more)
        return self._metrics[key]
