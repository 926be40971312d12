"""The paper's experiments: plans as TOML files, runs as JSON lines, tables and figures made of these."""
