"""How long the stages of a plan will take, and what room they need: from earlier runs, scaled, or by arithmetic."""
