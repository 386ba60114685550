"""Which layer call is in which stage: what users set, mark and print."""
