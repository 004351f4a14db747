"""The house's floors, written down once: packages, and the few files beside them.

A package may import from its own line and those above. Inside a package files import each other as
they need, never in a circle. A new package is put on its line before it is written.
"""

TRANSPORT = (
    "errors",
    "limits clock kinds phases",
    "arithmetic",
    "hashing",
    "credentials",
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
    "subnormals schedule scaling codec_facts vectors",
    "codecs",
    "robust",
    "inner error_feedback exclusions outer",
    "strategies",
)

SWARMTRAIN = (
    "foundation",
    "errors config console port_mapping",
    "models data checkpoint inner_optimizer",
    "pipeline",
    "strategies why credit",
    "status",
    "page",
    "coordinator peer",
    "simulate verify",
    "compare",
    "hook trained plan doctor",
    "integrations",
    "local_run",
    "demo emulate service",
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
    for name in (
        "zmq_link", "zmq_bundle", "zmq_proxy", "zmq_pump", "zmq_sockets", "zmq_turned", "tcp",
        "doorway", "dialler", "relay",
    )
)  # fmt: skip
"""Within transport these alone open sockets and know of event loops."""

STRANGERS = (
    ("swarmtrain.coordinator", "swarmtrain.peer"),
    ("swarmtrain.data", "swarmtrain.models"),
    ("swarmtrain_transport.coordinator", "swarmtrain_transport.peer"),
    ("swarmtrain_transport.collective", "swarmtrain_transport.kinds"),
)
"""Packages and modules that do not know each other, although their lines would let them."""
