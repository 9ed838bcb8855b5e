"""The subcommands of `gst`: what each takes, does and prints. Heavy libraries are imported where they are used."""
