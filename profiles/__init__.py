"""Profiles: one YAML file a scale, and the schema that every one of them must fit."""
