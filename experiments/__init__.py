"""The paper's experiments: plans as TOML files, runs as small JSON files, tables and figures made of these."""
