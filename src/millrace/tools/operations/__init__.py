"""The operations of compiled programs: what they compute and move, for whom, and how long."""
