"""The loop of fit, evaluate and predict for a model in one piece: one program of many steps."""
