"""The name of the package is no module: `import paramserver` says which ones there are."""

raise ModuleNotFoundError(
    "the package paramserver has no module of this name: use `import psworker as ps`", name="paramserver"
)
