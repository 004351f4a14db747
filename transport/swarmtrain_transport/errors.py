"""Every error of the exchange, told apart by who erred and what the reader can do."""


class TransportError(Exception):
    """Root of all errors of this part."""


class LocalFault(TransportError):
    """Our own caller misused a machine. A bug: the machine's state is as before the call."""


class RemoteFault(TransportError):
    """The other side broke the protocol. `reason` is one of a closed set and is counted.

    Args:
        reason: a short code such as ``scale`` or ``length``.
        detail: the fact and the value that was refused.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class LinkLost(TransportError):
    """Weather: the connection went away. Trying again is allowed."""


class InviteError(TransportError):
    """The text is not an invite, or not one that this version understands."""


class ListenFailed(TransportError):
    """The data lane cannot listen at this host and port. Nothing was opened.

    Args:
        host: the address that was asked for.
        port: the TCP port that was asked for, 0 for any.
        what: the reason, one clause.
    """

    def __init__(self, host: str, port: int, what: str) -> None:
        super().__init__(f"cannot listen on {host} port {port}: {what}")
        self.host = host
        self.port = port


class PortInUse(ListenFailed):
    """Another program listens on this host and port."""
