"""The house's floors, written down once: packages, and the few files beside them.

A package may import from its own line and those above. Inside a package files import each other as
they need, never in a circle. A new package is put on its line before it is written.
"""

TRANSPORT = (
    "errors",
    "limits clock kinds phases",
    "arithmetic",
    "hashing",
    "wire",
    "links",
    "result",
    "ledger",
    "blocks",
    "actions",
    "pipeline",
    "collective",
    "coordinator",
    "peer",
)

OPTIMIZERS = (
    "subnormals schedule scaling codec_facts",
    "codecs",
    "robust",
    "inner error_feedback exclusions outer",
    "strategies",
)

SWARMTRAIN = (
    "error_table control_lane signals atomic_file events",
    "errors",
    "caps config console environment",
    "options models data dirs file_descriptors checkpoint numerics inner_optimizer weights_file",
    "pipeline",
    "strategies why",
    "status",
    "coordinator peer",
    "crowd",
    "simulate verify",
    "compare",
    "swarm members api api_stages forecast forecast_costs forecast_moves trained",
    "integrations",
    "measured",
    "local_run",
    "demo emulate",
    "chaos",
    "cli",
    "__main__",
)

PARTS = {
    "swarmtrain_transport": TRANSPORT,
    "swarmtrain_optimizers": OPTIMIZERS,
    "swarmtrain": SWARMTRAIN,
}

TRANSPORT_SHELLS = frozenset(
    f"links.{name}"
    for name in ("zmq_link", "zmq_bundle", "zmq_proxy", "zmq_pump", "zmq_sockets", "tcp")
)
"""Within transport these alone open sockets and know of event loops."""

STRANGERS = (
    ("swarmtrain.coordinator", "swarmtrain.peer"),
    ("swarmtrain.data", "swarmtrain.models"),
    ("swarmtrain_transport.coordinator", "swarmtrain_transport.peer"),
    ("swarmtrain_transport.collective", "swarmtrain_transport.kinds"),
)
"""Packages and modules that do not know each other, although their lines would let them."""
