"""Source code: rules of The Stack and StarCoder 2."""
