"""Job shop scheduling: problems and their reader, a learned constructive policy, tabu search, and lower bounds."""
