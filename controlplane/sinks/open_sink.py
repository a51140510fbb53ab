"""Opens a sink or an archive as its settings describe.

The module for a kind of sink is imported only if the settings have a sink of that kind.
"""

from __future__ import annotations

from controlplane.sinks.interface import Archive, Sink
from controlplane.sinks.settings import (
    AnySink,
    BlobSettings,
    OtlpSettings,
    SentinelSettings,
    SplunkSettings,
    SyslogSettings,
)
from proxy.outbound.egress import Egress


def open_sink(settings: AnySink, egress: Egress) -> Sink | Archive:
    """Return the sink or archive, which is not connected yet."""
    match settings:
        case SyslogSettings():
            from controlplane.sinks.syslog import SyslogSink

            return SyslogSink(settings)
        case SplunkSettings():
            from controlplane.sinks.splunk import SplunkSink

            return SplunkSink(settings, egress)
        case OtlpSettings():
            from controlplane.sinks.otlp import OtlpSink

            return OtlpSink(settings, egress)
        case SentinelSettings():
            from controlplane.sinks.sentinel import SentinelSink

            return SentinelSink(settings, egress)
        case BlobSettings():
            from controlplane.sinks.blob import BlobSink, open_objects

            return BlobSink(open_objects(settings, egress), settings.flush_seconds)
