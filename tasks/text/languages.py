"""Programming languages by file name, under github-linguist's names.

An extension that several languages share belongs to the most common of them.
"""

from __future__ import annotations

from pathlib import PurePosixPath

EXTENSIONS = {
    "Assembly": "asm s nasm", "Astro": "astro", "Awk": "awk", "Batchfile": "bat cmd", "C": "c h", "C#": "cs csx",
    "C++": "cpp cc cxx hpp hh hxx c++ h++ ino ipp tpp", "CMake": "cmake", "COBOL": "cob cbl cobol", "CSS": "css",
    "CSV": "csv", "Clojure": "clj cljs cljc edn", "CoffeeScript": "coffee", "Common Lisp": "lisp lsp cl", "Coq": "v",
    "Crystal": "cr", "Cuda": "cu cuh", "Cython": "pyx pxd pxi", "D": "d", "Dart": "dart", "Diff": "diff patch",
    "Dockerfile": "dockerfile", "Elixir": "ex exs", "Elm": "elm", "Emacs Lisp": "el", "Erlang": "erl hrl",
    "F#": "fs fsi fsx", "Fortran": "f f90 f95 f03 f08 for", "GLSL": "glsl vert frag", "Go": "go",
    "GraphQL": "graphql gql", "Graphviz (DOT)": "dot gv", "Groovy": "groovy gradle", "HCL": "hcl tf tfvars",
    "HTML": "html htm xhtml", "Haskell": "hs lhs", "INI": "ini cfg", "Java": "java",
    "JavaScript": "js mjs cjs jsx es6", "JSON": "json jsonl geojson", "Julia": "jl", "Jupyter Notebook": "ipynb",
    "Kotlin": "kt kts", "Less": "less", "Lean": "lean", "Lua": "lua", "MATLAB": "m mat", "MDX": "mdx",
    "Makefile": "mk mak", "Markdown": "md markdown mkd", "Motorola 68K Assembly": "x68", "Nim": "nim nims",
    "Nix": "nix", "OCaml": "ml mli", "Objective-C": "mm", "PHP": "php phtml php5", "Pascal": "pas pp",
    "Perl": "pl pm perl", "PowerShell": "ps1 psm1 psd1", "Prolog": "pro prolog", "Protocol Buffer": "proto",
    "Python": "py pyi pyw", "R": "r rmd", "Racket": "rkt", "Roff": "roff man 1 2 3 4 5 6 7 8",
    "Ruby": "rb rake gemspec", "Rust": "rs", "SCSS": "scss", "SMT": "smt smt2", "SQL": "sql", "SVG": "svg",
    "Sass": "sass", "Scala": "scala sc", "Scheme": "scm ss", "Shell": "sh bash zsh ksh fish", "Solidity": "sol",
    "Stata": "do ado", "Svelte": "svelte", "Swift": "swift", "SystemVerilog": "sv svh", "TOML": "toml", "TSX": "tsx",
    "Tcl": "tcl", "TeX": "tex sty cls bib", "Text": "txt", "TypeScript": "ts mts cts", "VHDL": "vhd vhdl",
    "Verilog": "vh", "Vim Script": "vim", "Visual Basic .NET": "vb vbs", "Vue": "vue", "Web Ontology Language": "owl",
    "WebAssembly": "wat wast", "XML": "xml xsd xsl xslt rss wsdl", "YAML": "yaml yml", "Zig": "zig",
    "reStructuredText": "rst",
}  # fmt: skip
NAMES = {
    "dockerfile": "Dockerfile",
    "containerfile": "Dockerfile",
    "makefile": "Makefile",
    "gnumakefile": "Makefile",
    "cmakelists.txt": "CMake",
    "gemfile": "Ruby",
    "rakefile": "Ruby",
    "jenkinsfile": "Groovy",
    "build": "Starlark",
    "build.bazel": "Starlark",
    "workspace": "Starlark",
    ".bashrc": "Shell",
    "cargo.lock": "TOML",
    "pipfile": "TOML",
}
BY_EXTENSION = {extension: language for language, listed in EXTENSIONS.items() for extension in listed.split()}


def language_of(path: str) -> str | None:
    """The language of a file by its name, or None if the name doesn't reveal it."""
    name = PurePosixPath(path.replace("\\", "/")).name.lower()
    if name in NAMES:
        return NAMES[name]
    return BY_EXTENSION.get(name.rpartition(".")[2]) if "." in name else None
