"""The stage of each layer call: set in a list, marked by scopes, or balanced by cost."""
