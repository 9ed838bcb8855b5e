"""HDP (Mirhoseini et al., ICLR 2018)."""
