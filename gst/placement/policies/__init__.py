"""Policies that learn to place: ColocRL, HDP, GO and the project's own."""
