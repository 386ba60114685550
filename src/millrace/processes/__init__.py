"""The processes of one run: who they are, what they must agree on, how they fail together."""
