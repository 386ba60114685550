"""The loop of a model in one piece: one program of many steps, and its runner."""
