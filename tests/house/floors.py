"""The house's floors, written down once. A file may import from its own line and those above.

A new file is put on its line here before it is written: the line says what it may know of.
"""

TRANSPORT = (
    "errors limits clock kinds brings",
    "arithmetic slices window",
    "retention",
    "hashing",
    "frames messages identity invite",
    "link",
    "signed",
    "allow_list reception",
    "claims ledger batching sync result failure matrix fetch download flow widths outbox timers"
    " scalars",
    "pairing samples chain",
    "gathered lineage standing",
    "actions fold fragments blobs serving",
    "arrivals audit membership centre gauges",
    "attendance recovery slicing measuring",
    "planning ownership scatter gathering reports",
    "decisions",
    "operation gather_operation",
    "pair_operation",
    "operations",
    "scribe",
    "agreement tribunal departures",
    "local",
    "ahead",
    "early status_view history exchange gather_exchange pair_exchange exchanges catchup ledger_copy"
    " state_finder auditing",
    "progression trade",
    "rendezvous participant",
    "zmq_link_tcp zmq_link_pump",
    "zmq_link_proxy",
    "zmq_link_sockets",
    "zmq_link_bundle",
    "memory_link zmq_link relay",
)

OPTIMIZERS = (
    "flush schedule scaling codec_facts",
    "codecs.base",
    "codecs.scales",
    "codecs.packing codecs.dither",
    "codecs.int8_loops",
    "codecs.int8_kernels codecs.grid",
    "codecs.int8 codecs.int4 codecs.e3m0 codecs.sign codecs.topk codecs.raw",
    "codecs.two_bit",
    "robust.base",
    "robust.rows robust.eigen",
    "robust.norm_clip robust.trimmed_mean robust.coordinate_median",
    "robust.centered_clip robust.flag",
    "inner.muon",
    "codecs error_feedback exclusions outer inner robust",
    "strategies.base strategies.fragments strategies.checks strategies.brought",
    "strategies.anchored",
    "strategies.synchronous",
    "strategies.ddp strategies.delayed strategies.diloco strategies.local strategies.noloco",
    "strategies.delayed_nesterov strategies.sparseloco",
    "strategies.eager strategies.streaming",
    "strategies.registry",
    "strategies",
)

SWARMTRAIN = (
    "error_table config control_lane ending",
    "built_in",
    "errors tensors repeats",
    "config_problem",
    "config_defaults config_fragments lines",
    "config_pairs",
    "config_values",
    "config_limits",
    "cli.caps",
    "strategies",
    "config_file descriptors dirs cli.options checkpoint numerics data.* data models.* models",
    "why_pairs why_words",
    "why view",
    "status control_lane news",
    "coordinator.* coordinator peer.* peer",
    "simulate.* simulate verify.* verify",
    "compare.tuned",
    "compare.plan compare.costs compare.hostile",
    "compare.encoding compare.judge compare.results compare.shards",
    "compare.exchange compare.gather compare.pairs",
    "compare.replica compare.table compare.sources",
    "compare.swarm compare.html compare.request",
    "compare.seats",
    "compare.sweep compare",
    "hook_log",
    "api",
    "demo.* demo",
    "chaos.* chaos",
    "cli.* cli",
    "__main__",
)

PARTS = {
    "swarmtrain_transport": TRANSPORT,
    "swarmtrain_optimizers": OPTIMIZERS,
    "swarmtrain": SWARMTRAIN,
}

TRANSPORT_SHELLS = frozenset(
    {
        "zmq_link",
        "zmq_link_bundle",
        "zmq_link_proxy",
        "zmq_link_pump",
        "zmq_link_sockets",
        "zmq_link_tcp",
        "relay",
    }
)
"""Within transport these alone open sockets and know of event loops."""

SAME_LINE_STRANGERS = (
    ("swarmtrain.coordinator", "swarmtrain.peer"),
    ("swarmtrain.peer", "swarmtrain.coordinator"),
    ("swarmtrain.data", "swarmtrain.models"),
    ("swarmtrain.models", "swarmtrain.data"),
)
"""Neighbours on one line that do not know each other all the same: (who, whom)."""
