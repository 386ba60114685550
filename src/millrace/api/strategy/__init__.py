"""Strategies, their scopes, and the methods that attachment gives a model."""
