"""The dashboards as code: `make dashboards` writes grafana/dashboards/*.json from it.

promql   expressions that say over what they are summed
queries  an expression with the names of its series
kit      a panel, a row, a dashboard: how all of them look
and a file for each dashboard, which is a table of panels; processes is a row of the overview
"""
