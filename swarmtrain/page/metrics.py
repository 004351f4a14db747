"""The run's view in Prometheus' text format. No names of peers: their number has no bound."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from swarmtrain.page.view import RunView

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text_of(view: RunView) -> bytes:
    """The numbers of one view."""
    registry = CollectorRegistry()
    registry.register(_Collector(view))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, view: RunView) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """Yield the families of one view."""
        view = self._view
        gauges = {
            "round": ("Newest round with an outcome", view.round),
            "rounds_wanted": ("Rounds of the run", view.rounds),
            "loss": ("Validation loss in nats", view.loss),
            "tokens_per_second": ("Tokens that all peers train on in a second", view.tokens_per_s),
            "seconds_left": ("Time that the rounds left will take", view.left_s),
            "tokens": ("Tokens that are in results; fewer after a rewind", view.tokens),
            "commits": ("Rounds with a result", view.committed),
            "fewer_bytes": ("Times less than data-parallel would have sent", view.traffic.fewer),
            "is_waiting": ("1 while the run waits for somebody", int(bool(view.waiting_for))),
        }
        for name, (text, value) in gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"swarmtrain_{name}", text, value=float(value))
        moved = CounterMetricFamily(
            "swarmtrain_bytes", "Bytes of all peers that were seen", labels=["direction"]
        )
        for direction, count in (("up", view.traffic.up), ("down", view.traffic.down)):
            moved.add_metric([direction], float(count))
        yield moved
        peers = GaugeMetricFamily("swarmtrain_peers", "Peers by state", labels=["state"])
        for state, count in sorted(Counter(peer.state for peer in view.peers).items()):
            peers.add_metric([state], float(count))
        yield peers
