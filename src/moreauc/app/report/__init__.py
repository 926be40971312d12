"""Pages and figures of the command line's reports."""
