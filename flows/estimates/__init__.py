"""Estimates of a plan's time and disk: from earlier runs, scaled, or by arithmetic."""
