"""Tools that measure, plan and show: plans, reports, benchmarks, the command line."""
