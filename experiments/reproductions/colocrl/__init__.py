"""ColocRL (Mirhoseini et al., ICML 2017)."""
