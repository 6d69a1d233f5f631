"""Files that tools write, by their paths."""

from __future__ import annotations

import re

# Paths of files that tools write, from go-enry and github-linguist (generated.rb, and some of vendor.yml)
LOCKS = [
    "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "deno.lock", "poetry.lock",
    "pdm.lock", "uv.lock", "pixi.lock", "pipfile.lock", "cargo.lock", "cargo.toml.orig", "composer.lock",
    "gemfile.lock", "go.sum", "gopkg.lock", "glide.lock", "flake.lock", "mix.lock", "pubspec.lock", "podfile.lock",
    "cartfile.resolved", "package.resolved", "module.bazel.lock", ".terraform.lock.hcl", "packages.lock.json",
    "gradle.lockfile", "esy.lock", "paket.lock", "stack.yaml.lock", "ppport.h",
]  # fmt: skip
FOLDERS = ["node_modules", "__generated__", "pods", "carthage/build", "godeps", ".idea", ".yarn/releases", "htmlcov"]
GENERATED = re.compile(
    rf"(^|/)({'|'.join(map(re.escape, LOCKS))})$|(^|/)({'|'.join(map(re.escape, FOLDERS))})/"
    r"|(^|/)(\.pnp\.c?js|gradlew(\.bat)?|mvnw(\.cmd)?|zz_generated\.[^/]*)$"
    r"|(^|/)vendor/[\w.-]+\.(com|edu|gov|in|io|me|net|org|fm)/"
    r"|(^|/)esy\.lock/|(^|/)\.sqlx/query-[0-9a-f]+\.json$"
    r"|[.-]min\.(js|css|mjs)$|\.map$"
    r"|_pb2(_grpc)?\.pyi?$|_(grpc_)?pb\.(js|d\.ts|rb)$|\.pb(\.gw|\.validate)?\.(go|cc|h|swift|dart)$"
    r"|\.(designer|feature|g|g\.i)\.(cs|vb)$|\.(g|freezed|gr|mocks)\.dart$|\.(generated|gen)\.[^/]+$"
    r"|\.(nib|xcworkspacedata|xcuserstate|pbxproj|snap)$|(^|/)r\.java$"
)


def generated_name(path: str) -> str:
    """The part of a path that shows that a tool wrote the file, or ""."""
    mark = GENERATED.search(path.replace("\\", "/").lower())
    return mark[0].strip("/") if mark else ""
