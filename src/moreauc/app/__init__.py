"""What knows a file, a terminal or a page: the command line, tables, reports, comparisons, molecules."""
