"""What is measured, planned and shown: plans, reports, benchmarks, the command line."""
