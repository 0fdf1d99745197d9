"""Streams between hosts: ZeroMQ with a run's CURVE keys. Whoever has no key gets nothing."""

from podium.protocol.tcp.transport import TcpTransport

__all__ = ["TcpTransport"]
