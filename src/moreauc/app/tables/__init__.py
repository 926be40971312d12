"""What a table of rows, bags, groups or molecules must hold, and how results on it are reported."""
