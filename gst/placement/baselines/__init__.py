"""Plans that need no search: constructive methods of the literature, and a lower bound."""
