"""The commands of the client, one a module. Nothing heavy is imported before a command runs."""
