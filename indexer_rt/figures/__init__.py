"""Figures that ship with the package: published times, and the timing model's for the same shapes."""
