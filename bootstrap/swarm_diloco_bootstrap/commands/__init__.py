"""The commands of the operator's app, one a module. Nothing heavy is imported before a command runs."""
