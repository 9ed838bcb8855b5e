"""Step times of programs on machines that are described by their peak rates, most of which are not here."""
