"""The syntax of comments, by language.

A comment mark in a string doesn't count. Python's docstrings count as comments, as in SantaCoder's filter (Ben Allal et
al. 2023): strings in triple quotes with nothing before them on their line. Regular expressions of JavaScript and
heredocs are not recognised.
"""

from __future__ import annotations

SLASHES, HASHES, QUOTES, TICKS, TRIPLE, SPACED = 1, 2, 4, 8, 16, 32
_C, _HASH = SLASHES | QUOTES, HASHES | QUOTES | SPACED
# QUOTES: strings in single quotes. TICKS: strings in backquotes. SPACED: a hash opens a comment only after white space
_FAMILIES = {
    _C: "C C# C++ CSS Cuda D GLSL Groovy Java Kotlin Objective-C SCSS Less Solidity Swift Dart",
    SLASHES: "Rust Scala Zig",
    _C | TICKS: "Go JavaScript TypeScript TSX",
    _C | HASHES: "PHP",
    HASHES | QUOTES | TRIPLE: "Python Cython Starlark",
    _HASH: "Awk CMake Crystal Dockerfile Elixir Makefile Nim Nix Perl PowerShell R Ruby Shell TOML YAML",
    HASHES | SPACED: "Julia Tcl",
}
FAMILIES = {language: family for family, listed in _FAMILIES.items() for language in listed.split()}
FAMILIES["Protocol Buffer"] = _C
