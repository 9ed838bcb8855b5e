"""What this machine has, how fast it is, and whether its cores are free."""
