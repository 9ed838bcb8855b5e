"""Job shop scheduling: a learned policy and the search it begins, beside rules and CP-SAT."""
