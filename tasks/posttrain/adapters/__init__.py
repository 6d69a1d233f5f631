"""Room for adapters over a base model (LoRA and its kin, by PEFT). Empty today: every method trains full weights."""
