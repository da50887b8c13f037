"""Free ports, and who holds one that is taken."""

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from tandem.serving.errors import ServingError

_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10240  # below are those of well-known services
_TRIES: Final = 20


class Ports(NamedTuple):
    http: int
    grpc: int
    metrics: int


FREE: Final = Ports(0, 0, 0)
"""Any that are free."""


def choose_ports(host: str, wanted: Ports) -> Ports:
    """Checks that the wanted ports are free on `host`; a 0 is replaced by a free port."""
    # All sockets stay open until every port is chosen: two zeros never become one number.
    with ExitStack() as sockets:
        return Ports(*[_choose(sockets, host, *item) for item in wanted._asdict().items()])


def _choose(sockets: ExitStack, host: str, name: str, port: int) -> int:
    """The port, or a free one of those that the system gives to nobody by itself: Triton binds
    its ports when the models are loaded, and what these listen to and connect from until then must
    not take them."""
    if port == 0 and (unassigned := _unassigned_ports()):
        for candidate in random.choices(unassigned, k=_TRIES):
            with suppress(OSError):
                return _listen(sockets, host, candidate)
    return _bind(sockets, host, name, port)


def _unassigned_ports() -> list[int]:
    """Ports outside the range of connections and of those who ask for any port."""
    try:
        first, last = map(int, _EPHEMERAL.read_text().split())
    except OSError:  # hidden, as some sandboxes do
        return []
    return [*range(_LOWEST, first), *range(max(_LOWEST, last + 1), 1 << 16)]


def _listen(sockets: ExitStack, host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
    # Connections of an earlier server that linger in TIME_WAIT do not occupy the port.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind((host, port))
    # Bound sockets with SO_REUSEADDR may share a port as long as none of them listens.
    probe.listen(1)
    return int(probe.getsockname()[1])


def _bind(sockets: ExitStack, host: str, name: str, port: int) -> int:
    try:
        return _listen(sockets, host, port)
    except PermissionError:
        raise ServingError(f"Port {port} needs privileges: choose one above 1023.") from None
    except OSError as error:
        raise ServingError(
            f"The {name} port {port} on {host} cannot be used ({_obstacle(port, error)}): "
            "choose another, or 0 for a free one."
        ) from None


def _obstacle(port: int, error: OSError) -> str:
    holder = _listener(port)
    return f"taken by {holder}" if holder else (error.strerror or str(error))


def _listener(port: int) -> str | None:
    """Name and id of the process that listens on `port`, if this user may know it."""
    try:
        connections = psutil.net_connections(kind="tcp")
        for connection in connections:
            if connection.status != psutil.CONN_LISTEN or not connection.laddr:
                continue
            if connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, process {connection.pid}"
    except psutil.Error:
        pass
    return None
