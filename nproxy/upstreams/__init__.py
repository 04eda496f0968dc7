"""The only place that talks to upstreams: calls, replicas and their slots, lessons, retry budgets, model lists."""
