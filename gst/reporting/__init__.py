"""HTML reports of placements and trainings: a record as JSON holds it in, one page out."""
