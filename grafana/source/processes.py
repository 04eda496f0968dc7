"""The gateway's processes: a row of the overview."""

from __future__ import annotations

from grafana.source.kit import COUNT, PER_SECOND, SECONDS, Row, at_least, lines, listing, number, rising, until
from grafana.source.promql import grown, over, series
from grafana.source.queries import gauges, rates

PROCESSES = Row(
    "Processes",
    [
        lines(
            "Event loop lag",
            SECONDS,
            "How late timers ran, the worst worker of each instance. Above 0.1 s for minutes: one core is not enough, "
            "set listen.workers.",
            gauges("max", "nproxy_event_loop_lag_seconds", by=("instance",)),
            thresholds=rising(0.05, 0.1),
        ),
        lines(
            "Tasks of the event loop",
            COUNT,
            "They follow the calls in flight. Growing without end while requests do not: a leak, please report it.",
            gauges("sum", "nproxy_event_loop_tasks", by=("instance",)),
        ),
        lines(
            "Workers",
            COUNT,
            "Gateway processes by state, where there are several. Fewer ready ones than listen.workers for more than "
            "a minute: the log says why they end.",
            gauges(
                "sum",
                "nproxy_workers",
                by=(
                    "instance",
                    "state",
                ),
            ),
        ),
        number(
            "Workers restarted",
            COUNT,
            "Within the time shown. Each took its streams with it: look for its last lines, and for the out-of-memory "
            "killer.",
            grown("nproxy_worker_restarts_total"),
            thresholds=rising(1, 3),
        ),
        number(
            "Engine restarted",
            COUNT,
            "Within the time shown. It hung or died: its last lines stand in the gateway's log.",
            grown("nproxy_engine_restarts_total"),
            thresholds=rising(1, 3),
        ),
        number(
            "Engine answers",
            "bool_yes_no",
            "No: it did not tell its metrics when it was asked; what Engine and KV cache shows is its last word, for "
            "a minute at most. It loads, restarts or hangs: the log says which.",
            over("min", series("nproxy_engine_up")),
            thresholds=at_least(1),
            none="no engine",
        ),
        number(
            "Settings served",
            "bool_yes_no",
            "No: a changed file was refused, and older settings are served. `nproxy check FILE`, or `settings` in "
            "/status, tells each problem's line.",
            over("min", series("nproxy_config_reload_success")),
            thresholds=at_least(1),
        ),
        number(
            "Settings read",
            "dateTimeFromNow",
            "When the settings that are served were read last, at the instance that read them first.",
            f"1000 * {over('min', series('nproxy_config_last_reload_success_timestamp_seconds'))}",
        ),
        number(
            "Certificate ends",
            "dateTimeFromNow",
            "The first that does, of all instances that speak TLS and all of their chains. Less than a week: whatever "
            "renews it has not; `listen.tls` is read again when its files change.",
            f"1000 * {over('min', series('nproxy_tls_certificate_expiry_timestamp_seconds'))}",
            none="no TLS",
        ),
        lines(
            "Spans of traces",
            PER_SECOND,
            "By what became of them. failed: the collector does not take them; dropped: so many wait for it that there "
            "is no room. Requests go on without.",
            rates("nproxy_spans_total", by=("outcome",)),
            stacked=True,
        ),
        listing(
            "Versions",
            "none",
            "What runs where. Two versions for long: a rollout was left half done.",
            series("nproxy_build_info"),
            "job",
            "instance",
            "version",
            width=8,
        ),
        number(
            "Instances",
            COUNT,
            "Gateways that Prometheus reaches. Fewer than there should be: the process, its port, or the key that "
            "/metrics asks for.",
            over("count", series("nproxy_build_info")),
        ),
        number(
            "Log lines dropped",
            COUNT,
            "Within the time shown. Nobody reads the log, or its disk is full; requests are not held up by it.",
            grown("nproxy_log_lines_dropped_total"),
            thresholds=until(1),
        ),
    ],
)
