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
            "How late timers ran, for the worst worker of each instance. If it is above 0.1 s for minutes, one core is "
            "not enough: set listen.workers.",
            gauges("max", "nproxy_event_loop_lag_seconds", by=("instance",)),
            thresholds=rising(0.05, 0.1),
        ),
        lines(
            "Tasks of the event loop",
            COUNT,
            "Tasks follow the calls in flight. If they keep growing while requests do not, this is a leak: please "
            "report it.",
            gauges("sum", "nproxy_event_loop_tasks", by=("instance",)),
        ),
        lines(
            "Workers",
            COUNT,
            "Gateway processes by state, if there are several. If fewer than listen.workers serve for more than a "
            "minute, the log says why they ended.",
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
            "In the selected time range. The streams of each were cut: look for its last log lines, and for the "
            "out-of-memory killer.",
            grown("nproxy_worker_restarts_total"),
            thresholds=rising(1, 3),
        ),
        number(
            "Engine restarted",
            COUNT,
            "In the selected time range. The engine hung or died: its last lines are in the gateway's log.",
            grown("nproxy_engine_restarts_total"),
            thresholds=rising(1, 3),
        ),
        number(
            "Engine answers",
            "bool_yes_no",
            "No: the engine did not deliver its metrics; Engine and KV cache shows its last ones, for a minute at "
            "most. It is loading, restarting or hanging: the log says which.",
            over("min", series("nproxy_engine_up")),
            thresholds=at_least(1),
            none="no engine",
        ),
        number(
            "Current settings in use",
            "bool_yes_no",
            "No: a changed file was refused, and the older settings are used. `nproxy check FILE`, or `settings` in "
            "/status, shows each error with its line.",
            over("min", series("nproxy_config_reload_success")),
            thresholds=at_least(1),
        ),
        number(
            "Settings loaded",
            "dateTimeFromNow",
            "When the settings in use were loaded, at the instance where this is longest ago.",
            f"1000 * {over('min', series('nproxy_config_last_reload_success_timestamp_seconds'))}",
        ),
        number(
            "Certificate expires",
            "dateTimeFromNow",
            "The earliest expiry of all certificates of all instances with TLS. If it is less than a week away, the "
            "renewal has failed; `listen.tls` is reloaded when its files change.",
            f"1000 * {over('min', series('nproxy_tls_certificate_expiry_timestamp_seconds'))}",
            none="no TLS",
        ),
        lines(
            "Spans of traces",
            PER_SECOND,
            "Spans by outcome of their export. failed: the collector does not accept them; dropped: too many are "
            "waiting for it. Requests are not affected.",
            rates("nproxy_spans_total", by=("outcome",)),
            stacked=True,
        ),
        listing(
            "Versions",
            "none",
            "Which version runs where. If there are two versions for long, a rollout was not completed.",
            series("nproxy_build_info"),
            "job",
            "instance",
            "version",
            width=8,
        ),
        number(
            "Instances",
            COUNT,
            "Gateways that Prometheus can scrape. If there are fewer than expected, check the process, its port, or "
            "the key that /metrics requires.",
            over("count", series("nproxy_build_info")),
        ),
        number(
            "Log lines dropped",
            COUNT,
            "In the selected time range. The log is not read, or its disk is full; requests are not delayed by this.",
            grown("nproxy_log_lines_dropped_total"),
            thresholds=until(1),
        ),
    ],
)
