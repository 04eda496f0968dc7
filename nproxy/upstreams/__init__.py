"""The only place that talks to upstreams: calls, replicas, permits, what was learned, retry budgets, model lists."""
